import { PromptIds } from '../../src/protocol/token-ids/prompt-ids.ts'
import type { OutcomeMessage } from '../../src/proxy/store/common/turn-message.ts'
import type { TurnOutcome } from '../../src/proxy/store/port/turn-store.ts'

/** Fields of an outcome; the prompt's ids may be a plain list. */
export type OutcomeFields = Partial<Omit<TurnOutcome, 'promptTokenIds'>> & {
  promptTokenIds?: PromptIds | Int32Array
}

/** Converts ids to a prompt. */
export function toPromptIds(ids: PromptIds | Int32Array): PromptIds {
  return ids instanceof PromptIds ? ids : new PromptIds(ids.slice())
}

/** Converts an outcome to the form that reaches the writer of a store that knows no turn of the session. */
export function toOutcomeMessage({ promptTokenIds, ...outcome }: TurnOutcome): OutcomeMessage {
  const rest = promptTokenIds.slice(0, promptTokenIds.length)
  return { ...outcome, prompt: rest.length === 0 ? null : { base: null, shared: 0, rest } }
}
