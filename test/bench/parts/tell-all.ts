/**
 * Makes the fake engine send all its data, whatever the body requests: senders of this header need not inspect bodies.
 */
export const TELL_ALL = { 'x-tell': 'all' } as const
