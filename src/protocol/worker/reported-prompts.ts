/**
 * The prompts that workers reported, kept by the proxy with the messages that they are made of. A worker still has them, by the
 * name of the call: the prompt of a call that goes on from there is then sent as what it adds, in either direction. At 40,000
 * tokens 200 KB less have to be packed, sent and unpacked each time.
 */
import { SideTable } from '../../base/side-table.ts'
import type { Message } from '../canonical/conversation.ts'
import type { GenerationRequest } from '../canonical/request.ts'
import type { PromptIds } from '../token-ids/prompt-ids.ts'

export interface PromptReport {
  /** Of the call, on the wire. */
  readonly requestId: string
  readonly ids: PromptIds
  /** The worker, whoever stands for it. */
  readonly reportedBy: object
}

/** Shorter ones are sent in no time. */
export const MIN_REPORTED_IDS = 128

const reported = new SideTable<Message, PromptReport>()

export function attachReportedPrompt({ lastMessage }: GenerationRequest, prompt: PromptReport): void {
  if (lastMessage !== undefined && prompt.ids.length >= MIN_REPORTED_IDS) reported.put(lastMessage, prompt)
}

/** The longest one by this worker that the messages of a call go on from. */
export function findBasePrompt({ lastMessage }: GenerationRequest, worker: object): PromptReport | undefined {
  for (let at = lastMessage; at !== undefined; at = at.parent) {
    const prompt = reported.of(at)
    if (prompt?.reportedBy === worker) return prompt
  }
  return undefined
}
