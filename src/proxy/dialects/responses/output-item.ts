/** Items of a response's output, and the events that report them. */

export type ItemStatus = 'in_progress' | 'completed' | 'incomplete'
export type OutputItem = { type: string; id: string; [field: string]: unknown }
/** An event of the stream, without its sequence number. */
export type ResponseEvent = { type: string; [field: string]: unknown }

/** An output item to which deltas are still added. */
export interface ItemInProgress {
  /** Ends the item. @returns its last events; the last of them contains the final item */
  close(status: ItemStatus): ResponseEvent[]
}
