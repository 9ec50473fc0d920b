/**
 * The prompts that workers told, kept by the proxy with the messages that they are made of. A worker still has them, by the
 * name of the call: the prompt of a call that goes on from there is then told as what it adds. At 40,000 tokens 200 KB less
 * have to be packed, sent and unpacked.
 */
import type { Message } from '../canonical/conversation.ts'
import { Note } from '../canonical/note.ts'
import type { PromptIds } from '../canonical/prompt-ids.ts'
import type { GenerationRequest } from '../canonical/request.ts'

export interface ToldPrompt {
  /** Of the call, on the wire. */
  readonly requestId: string
  readonly ids: PromptIds
  /** The worker, whoever stands for it. */
  readonly toldBy: object
}

/** Shorter ones are told in no time. */
export const MIN_TOLD_IDS = 1_000

const told = new Note<Message, ToldPrompt>()

export function noteToldPrompt({ lastMessage }: GenerationRequest, prompt: ToldPrompt): void {
  if (lastMessage !== undefined && prompt.ids.length >= MIN_TOLD_IDS) told.put(lastMessage, prompt)
}

/** The longest one by this worker that the messages of a call go on from. */
export function basePromptOf({ lastMessage }: GenerationRequest, worker: object): ToldPrompt | undefined {
  for (let at = lastMessage; at !== undefined; at = at.parent) {
    const prompt = told.of(at)
    if (prompt?.toldBy === worker) return prompt
  }
  return undefined
}
