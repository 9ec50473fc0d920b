/** Tells the engine stand-in to send all that it can tell, whatever the body asks for: who adds this need not look at bodies. */
export const TELL_ALL = { 'x-tell': 'all' } as const
