/**
 * A model whose text is its token ids: the message `17 3` is the tokens 17 and 3. The request that any part of a row
 * came from can therefore be identified.
 */

import type { GenerationRequest } from '../../src/protocol/canonical/request.ts'
import { PromptIds } from '../../src/protocol/token-ids/prompt-ids.ts'
import type { EventStream } from './event-stream.ts'
import { type Script, untilAborted } from './scripted-backend.ts'

/** Returns the completion of a request; undefined: none, the engine hangs until the request is cancelled. */
type Sampler = (promptIds: readonly number[]) => readonly number[] | undefined

export function createPlainTokenScript(sample: Sampler): Script {
  return (request, signal) => generate(request, sample, signal)
}

async function* generate(request: GenerationRequest, sample: Sampler, signal: AbortSignal): EventStream {
  const messages = request.kind === 'chat' ? request.body.messages : []
  const promptIds = messages.flatMap(({ content }) => encodeText(String(content)))
  yield [{ type: 'start', engine: 'plain', model: 'plain', promptTokenIds: PromptIds.from(promptIds) }]
  const ids = sample(promptIds) ?? (await untilAborted(signal))
  const logprobs = ids.map(() => -0.5)
  yield [{ type: 'delta', content: decodeIds(ids), tokenIds: [...ids], logprobs }]
  yield [{ type: 'end', finishReason: 'stop' }]
}

export function encodeText(text: string): number[] {
  return text.split(' ').map(Number)
}

export function decodeIds(ids: readonly number[]): string {
  return ids.join(' ')
}
