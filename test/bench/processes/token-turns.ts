/**
 * Measures token mode without HTTP and without an engine: the proxy's own cost of a turn by the length of its history,
 * and how long a new long prompt blocks the event loop for other requests. The model is Qwen3's tokenizer and template.
 * The process sends its figures as a message, and exits.
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
import { generateWithPrompts } from '../../helpers/generate-with-prompts.ts'
import { ScriptedBackend } from '../../helpers/scripted-backend.ts'
import { openMemoryStore } from '../../helpers/store-in-process.ts'
import { addScaled, getThreadSeconds } from '../parts/proc-stat.ts'
import { computeSpread, quantile } from '../parts/statistics.ts'
import { generateProse } from '../parts/text.ts'
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
/** Sequential prompts: many, because the kernel counts CPU time in steps of 10 ms. */
const SEQUENTIAL_PROMPTS = quick ? 1 : 30
const SEQUENTIAL_TOKENS = 100_000

const model = await openTokenModel({ source: TOKEN_MODEL, parser: 'auto' })
const prompts = new TokenPrompts(model, await openMemoryStore())
const backend = new ScriptedBackend(generateCompletion)
const completionIds = [...model.tokenizer.encode('I see.'), model.tokenizer.eosTokenId!]
const signal = new AbortController().signal

try {
  await generate('warm-up', createHistory(LONG_PROMPT, 0))
  const figures: TokenFigures = {
    first: await measureFirstPrompts(),
    turns: await measureTurns(),
    besides: await measureShortRequests(),
  }
  process.send!(figures)
} finally {
  await model.close()
}

async function* generateCompletion({ promptTokenIds }: GenerationRequest): EventStream {
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
async function generate(sessionId: string, messages: ChatMessage[]): Promise<number> {
  const ids = { requestId: sessionId, sessionId }
  const request = { kind: 'chat', body: { messages }, stream: false, ...ids } as const
  const startedAt = performance.now()
  for await (const _ of generateWithPrompts(prompts, backend, request, signal)) {
  }
  return performance.now() - startedAt
}

function createHistory(tokens: number, seed: number): ChatMessage[] {
  const count = Math.floor((tokens * BYTES_PER_TOKEN) / MESSAGE_BYTES / 2) * 2
  const messages = Array.from(
    { length: count },
    (_, index): ChatMessage => ({
      role: index % 2 === 0 ? 'user' : 'assistant',
      content: generateProse(MESSAGE_BYTES, seed * 1_000 + index),
    }),
  )
  return [...messages, { role: 'user', content: 'Go on.' }]
}

/** Measures sequential prompts without any text that was tokenized before. */
async function measureFirstPrompts(): Promise<TokenFigures['first']> {
  const prompts = Array.from({ length: SEQUENTIAL_PROMPTS }, (_, index) =>
    createHistory(SEQUENTIAL_TOKENS, 100 + index),
  )
  const threads: Record<string, number> = {}
  addScaled(threads, getThreadSeconds(process.pid), -1000 / SEQUENTIAL_PROMPTS)
  const times: number[] = []
  for (const [index, messages] of prompts.entries()) times.push(await generate(`alone-${index}`, messages))
  addScaled(threads, getThreadSeconds(process.pid), 1000 / SEQUENTIAL_PROMPTS)
  return {
    tokens: SEQUENTIAL_TOKENS,
    encoder: model.encodedBy,
    ms: computeSpread(times),
    threadCpuMs: threads,
  }
}

/** Measures the lengths alternately in each round, so that changes in the machine's speed affect all alike. */
async function measureTurns(): Promise<TokenFigures['turns']> {
  const histories = HISTORIES.map((tokens) => ({
    tokens,
    messages: createHistory(tokens, 1),
    medians: [] as number[],
    threads: {} as Record<string, number>,
  }))
  for (const { tokens, messages } of histories) await generate(`turns-${tokens}`, messages)
  for (let round = 0; round < ROUNDS; round += 1) {
    for (const { tokens, messages, medians, threads } of histories) {
      const times: number[] = []
      const before = getThreadSeconds(process.pid)
      for (let turn = 0; turn < TURNS_PER_ROUND; turn += 1) {
        // The text is new to all histories, because they share the cache of tokenized text.
        const seed = tokens * 1_000 + round * TURNS_PER_ROUND + turn
        const newMessage = { role: 'user', content: generateProse(NEW_BYTES, seed) } as const
        times.push(
          await generate(`turns-${tokens}`, [
            ...messages,
            { role: 'assistant', content: 'I see.' },
            newMessage,
          ]),
        )
      }
      medians.push(quantile(times, 0.5))
      addScaled(threads, getThreadSeconds(process.pid), 1000 / (ROUNDS * TURNS_PER_ROUND))
      addScaled(threads, before, -1000 / (ROUNDS * TURNS_PER_ROUND))
    }
  }
  return histories.map(({ tokens, medians, threads }) => ({
    tokens,
    ms: computeSpread(medians),
    threadCpuMs: threads,
  }))
}

/** Measures a short request every few milliseconds, while new long prompts arrive in succession. */
async function measureShortRequests(): Promise<TokenFigures['besides']> {
  const delay = monitorEventLoopDelay({ resolution: 1 })
  const times: number[] = []
  let firstPromptMs = 0
  const prompts = Array.from({ length: FIRST_PROMPTS }, (_, i) => createHistory(LONG_PROMPT, 1_000 + i))
  await sleep(100)
  delay.enable()
  for (const [i, messages] of prompts.entries()) {
    let done = false
    const long = generate(`first-${i}`, messages).then((ms) => {
      firstPromptMs = Math.max(firstPromptMs, ms)
      done = true
    })
    while (!done) {
      // Measure from the scheduled time, to include the wait for the event loop.
      const due = performance.now() + 3
      await sleep(3)
      await generate(`short-${times.length}`, [{ role: 'user', content: 'Hello.' }])
      times.push(performance.now() - due)
    }
    await long
  }
  delay.disable()
  const longestBlockMs = delay.max / 1e6
  return {
    requests: times.length,
    p50Ms: quantile(times, 0.5),
    p99Ms: quantile(times, 0.99),
    firstPromptMs,
    longestBlockMs,
  }
}
