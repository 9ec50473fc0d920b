/**
 * The prompts that workers reported. The proxy attaches them to the messages from which they were rendered; the worker
 * stores them by request id. Either side then sends only the ids that a later prompt adds to an earlier one. At 40,000
 * tokens this saves packing, sending and unpacking 200 KB for each request.
 */
import { SideTable } from '../../base/side-table.ts'
import type { Message } from '../canonical/conversation.ts'
import type { GenerationRequest } from '../canonical/request.ts'
import type { PromptIds } from '../token-ids/prompt-ids.ts'

/** A prompt that a worker reported. */
export interface PromptReport {
  /** The request's id on the wire. */
  readonly requestId: string
  readonly ids: PromptIds
  /** The identity of the worker: any object that represents it. */
  readonly reportedBy: object
}

/** Shorter prompts take negligible time to send. */
export const MIN_REPORTED_IDS = 128

const reported = new SideTable<Message, PromptReport>()

export function attachReportedPrompt({ lastMessage }: GenerationRequest, prompt: PromptReport): void {
  if (lastMessage !== undefined && prompt.ids.length >= MIN_REPORTED_IDS) reported.attach(lastMessage, prompt)
}

/** Returns the longest prompt that this worker reported for a prefix of the request's messages. */
export function findBasePrompt({ lastMessage }: GenerationRequest, worker: object): PromptReport | undefined {
  for (let message = lastMessage; message !== undefined; message = message.parent) {
    const prompt = reported.get(message)
    if (prompt?.reportedBy === worker) return prompt
  }
  return undefined
}
