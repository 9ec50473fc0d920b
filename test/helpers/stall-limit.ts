/** No call may hold up all others for longer, in CPU time: a busy machine fails nothing. */
export const STALL_LIMIT_MS = 200

/**
 * The same for a process that is a test's as well: its own half of each call is done on the same thread. Twice of what
 * the tests need on a machine with five times more to do than it can.
 */
export const SHARED_STALL_LIMIT_MS = 300

/** Names the file that a watched process adds its stalls to, a line each. */
export const STALLS_FILE = 'TEST_STALLS_FILE'
