/**
 * Token mode without HTTP and without an engine: the proxy's own cost of a turn by the length of its history, and how
 * long a new long prompt blocks the event loop for other requests. The model is Qwen3's tokenizer and template. The
 * process sends its figures as a message, and ends.
 *
 * node token-turns.ts [--quick]
 */
import { monitorEventLoopDelay } from 'node:perf_hooks'
import { setTimeout as sleep } from 'node:timers/promises'
import type { ChatMessage } from '../../../src/protocol/canonical/messages.ts'
import type { GenerationRequest } from '../../../src/protocol/canonical/request.ts'
import { TokenPrompts } from '../../../src/proxy/session/prompts/token-prompts.ts'
import { openTokenModel } from '../../../src/proxy/tokens/model/token-model.ts'
import type { EventStream } from '../../helpers/event-stream.ts'
import { generatePrompted } from '../../helpers/prompted.ts'
import { ScriptedBackend } from '../../helpers/scripted-backend.ts'
import { openMemoryStore } from '../../helpers/store-in-process.ts'
import { sumInto, threadSeconds } from '../parts/proc-stat.ts'
import { computeSpread, quantile } from '../parts/statistics.ts'
import { prose } from '../parts/text.ts'
import { TOKEN_MODEL } from '../parts/token-model.ts'
import type { TokenFigures } from '../rows/token.ts'

/** The ratio for the text of `prose`. */
const BYTES_PER_TOKEN = 3.95
const MESSAGE_BYTES = 2_000
const NEW_BYTES = 1_000
const HISTORIES = [2_000, 32_000, 128_000]
const LONG_PROMPT = 128_000

const quick = process.argv.includes('--quick')
const ROUNDS = quick ? 2 : 7
const TURNS_PER_ROUND = quick ? 5 : 60
const FIRST_PROMPTS = quick ? 1 : 40
/** Prompts that are measured alone: many, as the kernel counts CPU time in steps of 10 ms. */
const ALONE_PROMPTS = quick ? 1 : 30
const ALONE_TOKENS = 100_000

const model = await openTokenModel({ source: TOKEN_MODEL, parser: 'auto' })
const prompts = new TokenPrompts(model, await openMemoryStore())
const backend = new ScriptedBackend(sample)
const completionIds = [...model.tokenizer.encode('I see.'), model.tokenizer.eosTokenId!]
const signal = new AbortController().signal

try {
  await sendRequest('warm-up', createHistory(LONG_PROMPT, 0))
  const figures: TokenFigures = {
    first: await measureFirstPrompts(),
    turns: await measureTurns(),
    besides: await measureShortCalls(),
  }
  process.send!(figures)
} finally {
  await model.close()
}

async function* sample({ promptTokenIds }: GenerationRequest): EventStream {
  yield [
    { type: 'start', engine: 'scripted', promptTokenIds: promptTokenIds! },
    { type: 'delta', tokenIds: completionIds, logprobs: completionIds.map(() => -1) },
    { type: 'end', finishReason: 'stop' },
  ]
}

/**
 * Sends a request.
 * @returns its duration in milliseconds
 */
async function sendRequest(sessionId: string, messages: ChatMessage[]): Promise<number> {
  // In the form in which a request reaches token mode: parsed, and serialized for the store.
  const ids = { requestId: sessionId, sessionId }
  const request = { kind: 'chat', body: { messages }, stream: false, ...ids } as const
  const begun = performance.now()
  for await (const _ of generatePrompted(prompts, backend, request, signal)) {
  }
  return performance.now() - begun
}

function createHistory(tokens: number, seed: number): ChatMessage[] {
  const count = Math.floor((tokens * BYTES_PER_TOKEN) / MESSAGE_BYTES / 2) * 2
  const messages = Array.from(
    { length: count },
    (_, index): ChatMessage => ({
      role: index % 2 === 0 ? 'user' : 'assistant',
      content: prose(MESSAGE_BYTES, seed * 1_000 + index),
    }),
  )
  return [...messages, { role: 'user', content: 'Go on.' }]
}

/** Measures sequential prompts of which nothing was tokenized before. */
async function measureFirstPrompts(): Promise<TokenFigures['first']> {
  const prompts = Array.from({ length: ALONE_PROMPTS }, (_, index) =>
    createHistory(ALONE_TOKENS, 100 + index),
  )
  const threads: Record<string, number> = {}
  sumInto(threads, threadSeconds(process.pid), -1000 / ALONE_PROMPTS)
  const times: number[] = []
  for (const [index, messages] of prompts.entries()) times.push(await sendRequest(`alone-${index}`, messages))
  sumInto(threads, threadSeconds(process.pid), 1000 / ALONE_PROMPTS)
  return { tokens: ALONE_TOKENS, encoder: model.encodedBy, ms: computeSpread(times), threadCpuMs: threads }
}

/** Measures the lengths alternately in each round, so that changes in the machine's speed affect all alike. */
async function measureTurns(): Promise<TokenFigures['turns']> {
  const histories = HISTORIES.map((tokens) => ({
    tokens,
    messages: createHistory(tokens, 1),
    medians: [] as number[],
    threads: {} as Record<string, number>,
  }))
  for (const { tokens, messages } of histories) await sendRequest(`turns-${tokens}`, messages)
  for (let round = 0; round < ROUNDS; round += 1) {
    for (const { tokens, messages, medians, threads } of histories) {
      const times: number[] = []
      const before = threadSeconds(process.pid)
      for (let turn = 0; turn < TURNS_PER_ROUND; turn += 1) {
        // New to all histories, because they share the cache of tokenized text.
        const seed = tokens * 1_000 + round * TURNS_PER_ROUND + turn
        const news = { role: 'user', content: prose(NEW_BYTES, seed) } as const
        times.push(
          await sendRequest(`turns-${tokens}`, [...messages, { role: 'assistant', content: 'I see.' }, news]),
        )
      }
      medians.push(quantile(times, 0.5))
      sumInto(threads, threadSeconds(process.pid), 1000 / (ROUNDS * TURNS_PER_ROUND))
      sumInto(threads, before, -1000 / (ROUNDS * TURNS_PER_ROUND))
    }
  }
  return histories.map(({ tokens, medians, threads }) => ({
    tokens,
    ms: computeSpread(medians),
    threadCpuMs: threads,
  }))
}

/** Measures a short request every few milliseconds, while new long prompts arrive in succession. */
async function measureShortCalls(): Promise<TokenFigures['besides']> {
  const delay = monitorEventLoopDelay({ resolution: 1 })
  const times: number[] = []
  let firstPromptMs = 0
  const prompts = Array.from({ length: FIRST_PROMPTS }, (_, i) => createHistory(LONG_PROMPT, 1_000 + i))
  await sleep(100)
  delay.enable()
  for (const [i, messages] of prompts.entries()) {
    let done = false
    const long = sendRequest(`first-${i}`, messages).then((ms) => {
      firstPromptMs = Math.max(firstPromptMs, ms)
      done = true
    })
    while (!done) {
      // Measured from when it was due, so that it includes the wait for the event loop.
      const due = performance.now() + 3
      await sleep(3)
      await sendRequest(`short-${times.length}`, [{ role: 'user', content: 'Hello.' }])
      times.push(performance.now() - due)
    }
    await long
  }
  delay.disable()
  const longestBlockMs = delay.max / 1e6
  return {
    calls: times.length,
    p50Ms: quantile(times, 0.5),
    p99Ms: quantile(times, 0.99),
    firstPromptMs,
    longestBlockMs,
  }
}
