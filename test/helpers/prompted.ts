import { CompletionBuilder } from '../../src/protocol/canonical/completion.ts'
import type { GenerationStream } from '../../src/protocol/canonical/events.ts'
import type { GenerationRequest } from '../../src/protocol/canonical/request.ts'
import type { Backend } from '../../src/proxy/engines/port/backend.ts'
import type { Prompts } from '../../src/proxy/session/prompts/prompts.ts'
import { SessionMemory } from '../../src/proxy/session/state/session-memory.ts'

const memories = new Map<string, SessionMemory>()

/** Generates as a turn does, without a session and a store: the prompt step around the engine's response. */
export async function* generatePrompted(
  prompts: Prompts,
  backend: Pick<Backend, 'generate'>,
  request: GenerationRequest,
  signal: AbortSignal,
): GenerationStream {
  const memory = memories.get(request.sessionId) ?? new SessionMemory()
  memories.set(request.sessionId, memory)
  const lastMessage = request.kind === 'chat' ? memory.messages.addMessages(request.body.messages) : undefined
  const prompt = await prompts.begin({ ...request, lastMessage }, memory)
  const fold = new CompletionBuilder()
  for await (const batch of prompt.answer ?? backend.generate(prompt.request, signal)) {
    await prompt.whileAsked()
    const events = await prompt.read(batch)
    for (const event of events) fold.add(event)
    if (fold.end) prompt.answered(fold)
    yield events
  }
}
