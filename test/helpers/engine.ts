import type { AddressInfo } from 'node:net'
import type { Test } from 'tap'
import { EmbeddedEngine, type EmbeddedEngineOptions } from '../../src/embedded/engine/embedded-engine.ts'
import { buildEngineServer, type EngineServer } from '../../src/embedded/server/server.ts'

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
  override async *generate(...request: Parameters<EmbeddedEngine['generate']>) {
    for await (const batch of super.generate(...request)) {
      yield batch.map((event) =>
        event.type === 'delta' && event.logprobsContent
          ? { ...event, logprobsContent: event.logprobsContent.map(halved) }
          : event,
      )
    }
  }
}

function halved<Entry extends { logprob: number }>(entry: Entry): Entry {
  return { ...entry, logprob: entry.logprob / 2 }
}
