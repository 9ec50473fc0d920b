import { recordTurn, type SessionsApi } from './sessions-api.ts'

const array = (...ids: number[]) => Int32Array.from(ids)
const json = (value: object) => JSON.stringify(value)

const SYSTEM = json({ role: 'system', content: 'You fix things.' })
const TASK = json({ role: 'user', content: [{ type: 'text', text: 'Fix it.' }] })
const TOOLS = json([
  { type: 'function', function: { name: 'run', description: '', parameters: { type: 'object' } } },
])

/** Creates a tool call as the proxy returns it to an agent. */
const toolCall = (id: string, text: string) => ({
  id,
  type: 'function',
  function: { name: 'run', arguments: text },
})
const createMessage = (content: string, calls: object[]) =>
  json({ role: 'assistant', content, tool_calls: calls })
const result = (id: string, content: string) => json({ role: 'tool', tool_call_id: id, content })

/** The first prompt of the main role. Each later one is the previous prompt, its completion, and 900. */
const FIRST = Array.from({ length: 20 }, (_, id) => id)

/**
 * Records a session with three main requests with tools, one of a sub-agent, and a side request. It contains tool calls
 * with invalid JSON arguments, an edited echo, a turn without exact ids, and usage with cached tokens.
 */
export async function recordToolSession(
  { store, sessions }: SessionsApi,
  sessionId: string,
  reward: number,
): Promise<void> {
  await sessions.create({
    sessionId,
    metadata: { task: 'fix', agent_name: 'mini', agent_version: '1.0' },
  })
  const toolCalls = [toolCall('call_a', '{"command":"ls"}'), toolCall('call_b', '{"command":')]
  await recordTurn(store, sessionId, 0, {
    requestMessages: [SYSTEM, TASK],
    tools: TOOLS,
    completionText: 'Looking.',
    reasoning: 'First look.',
    toolCalls: json(toolCalls),
    finishReason: 'tool_calls',
    promptTokenIds: array(...FIRST),
    completionTokenIds: array(100, 101),
    completionLogprobs: Float64Array.of(-0.5, -0.25),
    usage: json({
      prompt_tokens: 20,
      completion_tokens: 2,
      total_tokens: 22,
      prompt_tokens_details: { cached_tokens: 8 },
    }),
    weightVersionStart: '7',
    weightVersionEnd: '7',
  })
  const echoes = [
    createMessage('Looking.', [toolCall('call_a', '{"command":"ls"}'), toolCall('call_b', '{}')]),
  ]
  const results = [result('call_a', 'a.txt'), result('call_b', 'bad arguments')]
  await recordTurn(store, sessionId, 1, {
    requestMessages: [SYSTEM, TASK, ...echoes, ...results],
    tools: TOOLS,
    completionText: `Done ${reward}.`,
    promptTokenIds: array(...FIRST, 100, 101, 900),
    completionTokenIds: array(200 + reward),
    completionLogprobs: Float64Array.of(-1),
  })
  await recordTurn(store, sessionId, 2, {
    requestMessages: [
      json({ role: 'system', content: 'You search.' }),
      json({ role: 'user', content: 'Find.' }),
    ],
    annotations: json({ line: { told: 'subagent:finder', rule: 'header' } }),
    completionText: 'Found.',
    promptTokenIds: array(500, 501),
    completionTokenIds: array(502),
  })
  await recordTurn(store, sessionId, 3, {
    requestMessages: [json({ role: 'user', content: 'A title?' })],
    annotations: json({ line: { told: 'side', rule: 'header' } }),
    completionText: 'Title',
    promptTokenIds: array(600),
    completionTokenIds: array(601),
  })
  await recordTurn(store, sessionId, 4, {
    requestMessages: [json({ role: 'user', content: 'No ids' })],
    annotations: json({ line: { told: 'main', rule: 'header' } }),
    completionText: 'None',
    exact: false,
    inexactReason: 'the engine sent no ids',
    promptTokenIds: array(),
    completionTokenIds: array(),
    completionLogprobs: Float64Array.of(),
  })
  await sessions.setReward(sessionId, { reward, components: { tests: reward } })
  await sessions.complete(sessionId)
}
