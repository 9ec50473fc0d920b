/** Items of a response's output, and the events that tell of them. */

export type ItemStatus = 'in_progress' | 'completed' | 'incomplete'
export type OutputItem = { type: string; id: string; [field: string]: unknown }
/** An event of the stream, but for its number. */
export type ResponseEvent = { type: string; [field: string]: unknown }

export interface ItemInProgress {
  /** @returns the item's last events; the very last one brings the item as it is for good */
  close(status: ItemStatus): ResponseEvent[]
}
