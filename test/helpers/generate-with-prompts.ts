import { CompletionBuilder } from '../../src/protocol/canonical/completion.ts'
import type { GenerationRequest } from '../../src/protocol/canonical/request.ts'
import type { Backend } from '../../src/proxy/engines/port/backend.ts'
import type { Prompts } from '../../src/proxy/session/prompts/prompts.ts'
import { SessionMemory } from '../../src/proxy/session/state/session-memory.ts'
import { type EventStream, pull } from './event-stream.ts'

const memories = new Map<string, SessionMemory>()

/** Generates as a turn does, without a session and a store: `prompts` prepares the request and reads the response. */
export async function* generateWithPrompts(
  prompts: Prompts,
  backend: Pick<Backend, 'generate'>,
  request: GenerationRequest,
  signal: AbortSignal,
): EventStream {
  const memory = memories.get(request.sessionId) ?? new SessionMemory()
  memories.set(request.sessionId, memory)
  const lastMessage = request.kind === 'chat' ? memory.messages.addMessages(request.body.messages) : undefined
  const prompt = await prompts.begin({ ...request, lastMessage }, memory)
  const completion = new CompletionBuilder()
  const batches = prompt.response ? [prompt.response] : pull(backend, prompt.request, signal)
  for await (const batch of batches) {
    await prompt.prepareToRead()
    const events = await prompt.read(batch)
    for (const event of events) completion.add(event)
    if (completion.end) prompt.onCommitted(completion)
    yield events
  }
}
