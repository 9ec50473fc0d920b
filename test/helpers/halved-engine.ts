import type { AddressInfo } from 'node:net'
import type { Test } from 'tap'
import { EmbeddedEngine } from '../../src/embedded/engine/embedded-engine.ts'
import { buildEngineServer } from '../../src/embedded/server/server.ts'

/** Tells half of each logprob: the root of each probability. */
class HalvedEngine extends EmbeddedEngine {
  override async *generate(...asked: Parameters<EmbeddedEngine['generate']>) {
    for await (const batch of super.generate(...asked)) {
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

/** Serves an engine whose logprobs are wrong; closed when the test ends. @returns its URL */
export async function startHalvedEngine(t: Test): Promise<string> {
  const server = buildEngineServer(new HalvedEngine())
  await server.listen({ host: '127.0.0.1', port: 0 })
  t.teardown(() => server.close())
  return `http://127.0.0.1:${(server.server.address() as AddressInfo).port}`
}
