/**
 * Responses of an engine with random errors, complete and streamed, in chat and in token mode: the agent gets a
 * response or an error that blames the engine, and no turn is exact wrongly. A fifth of `FUZZ_RUNS`.
 */
import assert from 'node:assert/strict'
import fc from 'fast-check'
import t from 'tap'
import { createBrokenTexts, createMutations } from '../../helpers/mutations.ts'
import { startProxy } from '../../helpers/proxy.ts'
import { sendJson, startScriptedServer } from '../../helpers/scripted-server.ts'
import { watchStalls } from '../../helpers/stall-watch.ts'

const RUNS = Math.ceil(Number(process.env.FUZZ_RUNS ?? 300) / 20)
/** After this many requests the recorded turns are read and deleted. */
const REQUESTS_PER_SESSION = 50
const HANG_MS = 60_000

const ids = [3, 4, 5]
const usage = { prompt_tokens: 2, completion_tokens: 3, total_tokens: 5 }
const createToken = (id: number) => ({
  token: `token_id:${id}`,
  logprob: -id / 8,
  bytes: null,
  top_logprobs: [],
})
const toolCall = { index: 0, id: 'c', type: 'function', function: { name: 'run', arguments: '{"a": 1}' } }
const head = { id: 'x', created: 1, model: 'fake' }

const CHAT = {
  ...head,
  object: 'chat.completion',
  prompt_token_ids: [1, 2],
  choices: [
    {
      index: 0,
      message: { role: 'assistant', content: 'hi', reasoning_content: 'hm', tool_calls: [toolCall] },
      token_ids: ids,
      logprobs: { content: ids.map(createToken) },
      finish_reason: 'stop',
      stop_reason: null,
    },
  ],
  usage,
}
const CHAT_CHUNK = {
  ...head,
  object: 'chat.completion.chunk',
  prompt_token_ids: [1, 2],
  choices: [
    {
      index: 0,
      delta: { role: 'assistant', content: 'hi', reasoning_content: 'hm', tool_calls: [toolCall] },
      token_ids: ids,
      logprobs: { content: ids.map(createToken) },
      finish_reason: null,
    },
  ],
}
const createCompletion = (finish: string | null) => ({
  ...head,
  object: 'text_completion',
  choices: [
    {
      index: 0,
      text: 'hi',
      prompt_token_ids: [1, 2],
      token_ids: ids,
      logprobs: {
        tokens: ids.map((id) => `token_id:${id}`),
        token_logprobs: ids.map((id) => -id / 8),
        top_logprobs: null,
        text_offset: [],
      },
      finish_reason: finish,
      stop_reason: null,
    },
  ],
  ...(finish !== null && { usage }),
})
const finishChunk = (chunk: { choices: object[] }) => ({
  ...chunk,
  choices: [{ ...chunk.choices[0], finish_reason: 'stop' }],
})

/** An engine's responses, by mode, and whether they are streamed. */
const MODES = {
  chat: { config: {}, complete: CHAT, chunk: CHAT_CHUNK },
  token: {
    config: { tokenizer: 'embedded' },
    complete: createCompletion('stop'),
    chunk: createCompletion(null),
  },
} as const

interface RecordedTurn {
  status: string
  exact: boolean
  completion_token_ids: unknown[]
  completion_logprobs: unknown[]
}

function checkTurn({
  status,
  exact,
  completion_token_ids: ids,
  completion_logprobs: logprobs,
}: RecordedTurn) {
  assert.notEqual(status, 'open')
  if (!exact) return
  assert.equal(ids.length, logprobs.length)
  assert.ok(
    ids.every((id) => Number.isInteger(id) && Number(id) >= 0 && Number(id) < 2 ** 31),
    `ids ${ids}`,
  )
  assert.ok(
    logprobs.every((logprob) => typeof logprob === 'number' && logprob <= 0.001 && logprob > -1e300),
    `logprobs ${logprobs}`,
  )
}

for (const [mode, { config, complete: full, chunk }] of Object.entries(MODES)) {
  for (const stream of [false, true]) {
    const shape = stream ? 'streamed' : 'complete'
    t.test(`${RUNS} invalid ${shape} responses, in ${mode} mode`, async (t) => {
      let output = ''
      const engine = await startScriptedServer((request, response) => {
        if (request.method === 'GET')
          return sendJson(response, { object: 'list', data: [{ id: 'fake', owned_by: 'vllm' }] })
        engine.requests.length = 0
        const type = request.body.stream ? 'text/event-stream' : 'application/json'
        response.writeHead(200, { 'content-type': type }).end(output)
      })
      t.teardown(() => engine.close())
      const proxy = await startProxy(t, {
        db: 'memory',
        engineUrls: [engine.url],
        engineKind: 'vllm',
        ...config,
      })
      let requestCount = 0
      const statuses: Record<string, number> = {}
      const checkRecorded = async () => {
        const { turns = [] } = await proxy.get('/sessions/s')
        for (const turn of turns) checkTurn(turn)
        const { status } = await fetch(`${proxy.url}/sessions/s/trajectories`)
        // The first request creates the session.
        assert.ok(status === 200 || turns.length === 0, String(status))
        await fetch(`${proxy.url}/sessions/s`, { method: 'DELETE' })
      }
      const mutated = stream
        ? fc.oneof(createMutations(chunk), createMutations(finishChunk(chunk)), createBrokenTexts(chunk))
        : fc.oneof(createMutations(full), createBrokenTexts(full))
      const sendRequest = async () => {
        const response = await fetch(`${proxy.baseUrl('s')}/chat/completions`, {
          method: 'POST',
          body: JSON.stringify({ messages: [{ role: 'user', content: 'hi' }], max_tokens: 3, stream }),
          signal: AbortSignal.timeout(HANG_MS),
        })
        const body = await response.text()
        statuses[response.status] = (statuses[response.status] ?? 0) + 1
        // The error blames the engine, not the proxy, and does not silence an agent permanently.
        assert.doesNotMatch(body, /"code":"internal"/)
      }
      const setOutput = (response: string) => {
        output = stream
          ? `data: ${response}\n\ndata: ${JSON.stringify(finishChunk(chunk))}\n\ndata: [DONE]\n\n`
          : response
      }
      setOutput(JSON.stringify(stream ? chunk : full))
      await sendRequest()
      t.match((await proxy.get('/sessions/s')).turns, [{ status: 'completed', exact: true }], 'not mutated')
      await checkRecorded()
      const { withoutStall } = await watchStalls(t)
      await fc.assert(
        fc.asyncProperty(mutated, async (response) => {
          setOutput(response)
          await withoutStall(sendRequest)
          requestCount += 1
          if (requestCount % REQUESTS_PER_SESSION === 0) await checkRecorded()
        }),
        { numRuns: RUNS, endOnFailure: true },
      )
      await checkRecorded()
      t.equal((await fetch(`${proxy.url}/health`)).status, 200, JSON.stringify(statuses))
      t.ok((statuses[200] ?? 0) > RUNS / 50, 'some are accepted')
    })
  }
}
