/**
 * A header with which the fake engine sends all its data, whatever the body requests: senders need not inspect bodies.
 */
export const REPORT_ALL = { 'x-tell': 'all' } as const
