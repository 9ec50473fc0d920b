import type { AddressInfo } from 'node:net'
import type { Test } from 'tap'
import { EmbeddedEngine, type EmbeddedEngineOptions } from '../../src/embedded/engine/embedded-engine.ts'
import { buildEngineServer, type EngineServer } from '../../src/embedded/server/server.ts'
import type { GenerationEvent } from '../../src/protocol/canonical/events.ts'

export interface TestEngine {
  url: string
  engine: EmbeddedEngine
  server: EngineServer
}

/** Starts the embedded engine with vLLM's wire format in this process, on a free port; it closes when the test ends. */
export async function startEngine(
  t: Pick<Test, 'teardown'>,
  options: EmbeddedEngineOptions | EmbeddedEngine = {},
): Promise<TestEngine> {
  const engine = options instanceof EmbeddedEngine ? options : new EmbeddedEngine(options)
  const server = buildEngineServer(engine)
  await server.listen({ host: '127.0.0.1', port: 0 })
  t.teardown(() => server.close())
  return { url: `http://127.0.0.1:${(server.server.address() as AddressInfo).port}`, engine, server }
}

/** An engine that reports half of each logprob: the square root of each probability. */
export class HalvedEngine extends EmbeddedEngine {
  override generate(...[request, sink, signal]: Parameters<EmbeddedEngine['generate']>) {
    const write: typeof sink.write = (batch) => sink.write(batch.map(halveEvent))
    return super.generate(request, { write }, signal)
  }
}

function halveEvent(event: GenerationEvent): GenerationEvent {
  return event.type === 'delta' && event.logprobsContent
    ? { ...event, logprobsContent: event.logprobsContent.map(halve) }
    : event
}

function halve<Entry extends { logprob: number }>(entry: Entry): Entry {
  return { ...entry, logprob: entry.logprob / 2 }
}
