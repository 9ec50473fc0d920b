/** The longest time that a request may block all others, in CPU time: a busy machine causes no failures. */
export const STALL_LIMIT_MS = 200

/**
 * The limit for a process that also runs the test, whose half of each request runs on the same thread. It is twice what
 * the tests need on a machine with five times its capacity to do.
 */
export const SHARED_STALL_LIMIT_MS = 300

/** The environment variable that names the file to which a watched process appends its stalls, one per line. */
export const STALLS_FILE = 'TEST_STALLS_FILE'
