import { setFlagsFromString } from 'node:v8'
import { runInNewContext } from 'node:vm'
import t from 'tap'
import { promptPieces } from '../../src/proxy/session/prompts/prompt-pieces.ts'
import { MemoryTurnStore } from '../../src/proxy/store/port/memory.ts'
import { aSession, aTurn } from '../conformance/turn-store.ts'

setFlagsFromString('--expose-gc')
const collect: () => void = runInNewContext('gc')

function heapBytes(): number {
  collect()
  return process.memoryUsage().heapUsed
}

t.test('prompts that go on from one another take the memory of the longest one', async (t) => {
  const store = new MemoryTurnStore()
  await store.createSession(aSession('s'))
  const before = heapBytes()
  let prompt = ''
  for (let index = 0; index < 200; index += 1) {
    prompt += `${index} `.repeat(1_000)
    await store.openTurn(aTurn(`t${index}`, { index, promptPieces: promptPieces(prompt) }))
  }
  const grown = heapBytes() - before
  t.ok(grown < 5 * prompt.length, `${grown} bytes for a prompt of ${prompt.length}`)
  t.ok((await store.getSession('s'))!.turnCount)
})
