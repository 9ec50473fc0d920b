/** Agents that rewrite the tool calls that they received: one row, and prompts with the sampled form. */

import t, { type Test } from 'tap'
import { getTextsUpTo } from '../../../../src/protocol/canonical/conversation.ts'
import type { ChatMessage, ToolCall } from '../../../../src/protocol/canonical/messages.ts'
import {
  type Trajectory,
  TrajectoryBuilder,
} from '../../../../src/proxy/session/trajectories/trajectories.ts'
import type { TurnRecord, TurnStore } from '../../../../src/proxy/store/port/turn-store.ts'
import type { TokenModel } from '../../../../src/proxy/tokens/model/token-model.ts'
import { findParser } from '../../../../src/proxy/tokens/parsers/choose-parser.ts'
import { openMemoryStore } from '../../../helpers/store-in-process.ts'
import { createRenderer, createTemplate } from '../../../helpers/templates.ts'
import { createTokenModeRig } from '../../../helpers/token-mode-rig.ts'
import { loadTokenModel } from './conversation-player.ts'

const qwen = loadTokenModel('qwen3')

/**
 * A template in Kimi's markup, which renders ids; and one in gpt-oss's style, which renders a tool call's
 * name with its result.
 */
const HEAD = '{% for m in messages %}<|im_start|>{{ m.role }}\n'
const CALLS =
  '{{ m.content or "" }}{% for c in m.tool_calls or [] %}<|tool_call_begin|>{{ c.id }}<|tool_call_argument_begin|>' +
  '{{ c.function.arguments if c.function.arguments is string else c.function.arguments | tojson }}<|tool_call_end|>{% endfor %}'
const TAIL = '<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}'
const WITH_IDS = `${HEAD}{% if m.role == 'tool' %}Return of {{ m.tool_call_id }}: {{ m.content }}{% else %}${CALLS}{% endif %}${TAIL}`
const WITH_NAMES =
  `{% set ns = namespace(name='') %}${HEAD}{% if m.role == 'tool' %}{{ ns.name }} said {{ m.content }}{% else %}${CALLS}` +
  `{% for c in m.tool_calls or [] %}{% set ns.name = c.function.name %}{% endfor %}{% endif %}${TAIL}`

function createModel(source: string, parser: string): TokenModel {
  const renderer = createRenderer(createTemplate(source), qwen.tokenizer, { source })
  return { ...qwen, source, renderer, parser: findParser(parser) } as TokenModel
}

const kimi = createModel(WITH_IDS, 'kimi_k2')

const TOOLS = ['run', 'Edit'].map((name) => ({
  type: 'function' as const,
  function: { name, parameters: { type: 'object', properties: {} } },
}))

const user = (content: string): ChatMessage => ({ role: 'user', content })
const result = (id: string, content: string): ChatMessage => ({ role: 'tool', tool_call_id: id, content })
const hermes = (name: string, args: object) =>
  `<tool_call>\n${JSON.stringify({ name, arguments: args })}\n</tool_call>`
const kimiToolCall = (id: string, args: string) =>
  `<|tool_calls_section_begin|><|tool_call_begin|>${id}<|tool_call_argument_begin|>${args}<|tool_call_end|><|tool_calls_section_end|>`

const getCalls = ({ toolCalls }: TurnRecord) => JSON.parse(toolCalls) as ToolCall[]
const getAnnotations = ({ annotations }: TurnRecord) => JSON.parse(annotations)
const getEcho = (turn: TurnRecord, change: (call: ToolCall) => object = (call) => call): ChatMessage =>
  ({ role: 'assistant', content: turn.completionText, tool_calls: getCalls(turn).map(change) }) as ChatMessage
const withArguments =
  (args: object) =>
  (call: ToolCall): object => ({ ...call, function: { ...call.function, arguments: JSON.stringify(args) } })

function getText({ promptTokenIds }: TurnRecord): string {
  return qwen.tokenizer.decode(promptTokenIds)
}

function getRows(turns: readonly TurnRecord[]): Trajectory[] {
  const builder = new TrajectoryBuilder()
  for (const turn of turns) builder.add(turn)
  return [...builder.assembleRows({}, null)]
}

/** Starts an engine that sends these responses one after the other. */
async function setUp(t: Test, model: TokenModel, completions: string[], existing?: TurnStore) {
  const store = existing ?? (await openMemoryStore())
  let index = 0
  return createTokenModeRig(t, model, () => ({ text: completions[index++]! }), store)
}

t.test('a tool call that its agent completes is continued as sampled, and reported', async (t) => {
  const args = { file: 'a.py', old: 'x  ', new: 'y' }
  const rig = await setUp(t, qwen, [hermes('Edit', args), hermes('run', { command: 'cd /w && ls' }), 'Done.'])
  const first = await rig.sendRequest([user('task')], { tools: TOOLS })
  t.match(getCalls(first)[0]!.id, /^call_[0-9a-f]{24}$/)
  const echoed = { replace_all: false, old: 'x', new: 'y', file: 'a.py' }
  const messages = [user('task'), getEcho(first, withArguments(echoed)), result(getCalls(first)[0]!.id, 'ok')]
  const second = await rig.sendRequest(messages, { tools: TOOLS })
  t.match(getAnnotations(second).prompt, { reason: 'extended', from: first.turnId })
  t.same(getAnnotations(second).echo, {
    kinds: ['arguments'],
    from: first.turnId,
    changes: [
      { kind: 'arguments', call: getCalls(first)[0]!.id, path: 'old', sampled: '"x  "', echoed: '"x"' },
      {
        kind: 'arguments',
        call: getCalls(first)[0]!.id,
        path: 'replace_all',
        sampled: null,
        echoed: 'false',
      },
    ],
  })
  const moreMessages = [
    ...messages,
    getEcho(second, withArguments({ command: 'ls' })),
    result(getCalls(second)[0]!.id, 'b'),
  ]
  const third = await rig.sendRequest(moreMessages, { tools: TOOLS })
  t.match(getAnnotations(third).prompt, { reason: 'extended', from: second.turnId })
  t.ok(getText(third).includes('cd /w && ls') && !getText(third).includes('replace_all'))
  t.match(
    JSON.parse(getTextsUpTo(third.lastMessage)[1]!).tool_calls[0].function.arguments,
    'replace_all',
    'as sent',
  )
  t.equal(getRows([first, second, third]).length, 1)
})

t.test(
  'a session with the policy branch, or with pruned tool calls, starts a new row with a reason',
  async (t) => {
    const content = 'word '.repeat(600)
    const rig = await setUp(t, qwen, [hermes('Edit', { content }), 'Pruned.', 'On.'])
    const first = await rig.sendRequest([user('task')], { tools: TOOLS })
    const cut = getEcho(first, withArguments({ content: 'word ...' }))
    const messages = [user('task'), cut, result(getCalls(first)[0]!.id, 'ok')]
    const second = await rig.sendRequest(messages, { tools: TOOLS })
    t.match(getAnnotations(second), {
      prompt: { reason: 'branched' },
      echo: { kinds: ['edited', 'arguments'], from: first.turnId },
    })
    t.ok(getAnnotations(second).echo.changes[0].sampled.length < 300, 'a long value is cut')
    t.ok(getText(second).includes('word ...'))
    const pruned: ChatMessage = { role: 'assistant', content: 'Pruned.' }
    const third = await rig.sendRequest([...messages, pruned, user('more')], { tools: TOOLS })
    t.match(getAnnotations(third).prompt, { reason: 'extended', from: second.turnId })
    t.equal(getAnnotations(third).echo, undefined)

    const strict = await setUp(t, qwen, [hermes('run', { a: 1 }), 'Done.'])
    await strict.sessions.create({ sessionId: 's', editedCalls: 'branch' })
    const opening = await strict.sendRequest([user('task')], { tools: TOOLS })
    const filled = getEcho(opening, withArguments({ a: 1, b: 2 }))
    const next = await strict.sendRequest([user('task'), filled, result(getCalls(opening)[0]!.id, 'ok')], {
      tools: TOOLS,
    })
    t.match(getAnnotations(next), {
      prompt: { reason: 'branched' },
      echo: { kinds: ['edited', 'arguments'] },
    })
  },
)

t.test('a session that was reset has its policy, also if a token count precedes its requests', async (t) => {
  for (const [editedCalls, sampled, echoed, reason] of [
    ['branch', { a: 1 }, { a: 1, b: 2 }, 'branched'],
    ['keep', { content: 'word '.repeat(600) }, { content: 'word ...' }, 'extended'],
  ] as const) {
    const rig = await setUp(t, qwen, [hermes('run', sampled), 'Done.'])
    await rig.sessions.create({ sessionId: 's', editedCalls })
    await rig.sessions.reset('s')
    await rig.count([user('task')])
    const first = await rig.sendRequest([user('task')], { tools: TOOLS })
    const edited = getEcho(first, withArguments(echoed))
    const messages = [user('task'), edited, result(getCalls(first)[0]!.id, 'ok')]
    const second = await rig.sendRequest(messages, { tools: TOOLS })
    t.match(getAnnotations(second), { prompt: { reason } }, editedCalls)
  }
})

t.test('a template renders the sampled name instead of the echoed one', async (t) => {
  const rig = await setUp(t, createModel(WITH_NAMES, 'hermes'), [hermes('nope', { a: 1 }), 'Done.'])
  const first = await rig.sendRequest([user('task')], { tools: TOOLS })
  const rename = (call: ToolCall) => ({
    ...call,
    function: { name: 'invalid', arguments: '{"error":"no"}' },
  })
  const messages = [user('task'), getEcho(first, rename), result(getCalls(first)[0]!.id, 'no such tool')]
  const second = await rig.sendRequest(messages, { tools: TOOLS })
  t.match(getAnnotations(second), { prompt: { reason: 'extended' }, echo: { kinds: ['name', 'arguments'] } })
  t.ok(getText(second).includes('nope said no such tool'), getText(second))
})

t.test('ids that a client reduces to letters and digits are recognized', async (t) => {
  const both = `${hermes('run', { a: 1 })}\n${hermes('run', { b: 2 })}`
  const stripped = (call: ToolCall) => ({ ...call, id: call.id.replace('_', '') })
  for (const model of [qwen, createModel(WITH_IDS, 'hermes')]) {
    const rig = await setUp(t, model, [both, 'Done.'])
    const first = await rig.sendRequest([user('task')], { tools: TOOLS })
    const [a, b] = getCalls(first)
    const results = [result(stripped(b!).id, 'two'), result(stripped(a!).id, 'one')]
    const second = await rig.sendRequest([user('task'), getEcho(first, stripped), ...results], {
      tools: TOOLS,
    })
    t.match(getAnnotations(second).prompt, { reason: 'extended', from: first.turnId })
    t.equal(getAnnotations(second).echo, undefined, 'nothing was changed')
    const text = getText(second)
    t.ok(text.lastIndexOf('one') < text.lastIndexOf('two'), 'in the order of the calls')
    if (model !== qwen) t.ok(text.includes(`Return of ${a!.id}`), "with the model's ids")
  }
})

t.test('results have the order of the sampled tool calls', async (t) => {
  const both = `${hermes('run', { a: 1 })}\n${hermes('run', { b: 2 })}`
  const completions = [both, 'Done.', both, 'Done.', both, 'Done.', both, 'Done.']
  const rig = await setUp(t, qwen, completions)
  const after = async (task: string, getResults: (a: string, b: string) => ChatMessage[]) => {
    const first = await rig.sendRequest([user(task)], { tools: TOOLS })
    const [a, b] = getCalls(first).map(({ id }) => id)
    const turned = { ...getEcho(first), tool_calls: getCalls(first).toReversed() } as ChatMessage
    const second = await rig.sendRequest([user(task), turned, ...getResults(a!, b!)], { tools: TOOLS })
    t.match(getAnnotations(second), {
      prompt: { reason: 'extended', from: first.turnId },
      echo: { kinds: ['order'] },
    })
    return getText(second)
  }
  const getDistance = (text: string) =>
    ['one', 'two'].map((word) => text.lastIndexOf(word)).reduce((one, two) => two - one)
  const turned = await after('x', (a, b) => [result(b, 'two'), result(a, 'one')])
  t.ok(getDistance(turned) > 0, 'sorted')
  const missing = await after('y', (_, b) => [result(b, 'two'), user('one')])
  t.ok(getDistance(missing) < 0, 'one is missing')
  const twice = await after('z', (a, b) => [result(b, 'two'), result(b, 'two'), result(a, 'one')])
  t.ok(getDistance(twice) < 0, 'one is repeated')
  const foreign = await after('f', (a, b) => [result(b, 'two'), result('x', 'three'), result(a, 'one')])
  t.ok(getDistance(foreign) < 0, 'one belongs to another tool call')
})

t.test("the model reads its own ids, and its agent the proxy's, which never repeat", async (t) => {
  const repeated = 'functions.run:0'
  const completions = [...[1, 2, 3, 4].map((n) => kimiToolCall(repeated, `{"n": ${n}}`)), 'Done.']
  const store = await openMemoryStore()
  let rig = await setUp(t, kimi, completions.slice(0, 3), store)
  const messages: ChatMessage[] = [user('task')]
  const turns: TurnRecord[] = []
  for (let index = 0; index < completions.length; index += 1) {
    // A restart: the session's state comes from the store.
    if (index === 3) rig = await setUp(t, kimi, completions.slice(3), store)
    const turn = await rig.sendRequest(messages, { tools: TOOLS })
    turns.push(turn)
    t.equal(getAnnotations(turn).prompt.reason, index === 0 ? 'first' : 'extended')
    const [call] = getCalls(turn)
    if (call === undefined) break
    t.same(getAnnotations(turn).call_ids, { [call.id]: repeated })
    messages.push(
      getEcho(turn, withArguments({ n: index + 1, extra: true })),
      result(call.id, `result ${index}`),
    )
  }
  const last = getText(turns.at(-1)!)
  t.equal(last.split(`Return of ${repeated}: result`).length, 5)
  t.notMatch(last, /call_[0-9a-f]{24}/)
  t.equal(new Set(turns.flatMap(getCalls).map(({ id }) => id)).size, 4)
  t.equal(getRows(turns).length, 1)
  // Another branch has the same tool calls, with the same names.
  const branch = await setUp(t, kimi, ['Other.'], store)
  const other = await branch.sendRequest([user('summary'), ...messages.slice(-2)], { tools: TOOLS })
  t.match(getAnnotations(other).prompt.reason, 'branched')
  t.ok(getText(other).includes(`Return of ${repeated}: result 3`))
  t.notMatch(getText(other), /call_[0-9a-f]{24}/)
})

t.test('an unrecorded id of a proxy is reported, and any other is forwarded unchanged', async (t) => {
  const other = await setUp(t, qwen, [hermes('run', { a: 1 })])
  const lost = getCalls(await other.sendRequest([user('task')], { tools: TOOLS }))[0]!
  const rig = await setUp(t, kimi, ['One.', 'Two.'])
  const echo = (id: string): ChatMessage[] => [
    user('task'),
    { role: 'assistant', content: null, tool_calls: [{ ...lost, id }] },
    result(id, 'ok'),
  ]
  const turn = await rig.sendRequest(echo(lost.id), { tools: TOOLS })
  t.same(getAnnotations(turn).echo, { kinds: ['unknown_id'] })
  t.ok(getText(turn).includes(`Return of ${lost.id}`))
  const foreign = await rig.sendRequest(echo('toolu_01'), { tools: TOOLS })
  t.equal(getAnnotations(foreign).echo, undefined)
  t.ok(getText(foreign).includes('Return of toolu_01'))
})

t.test('an image in a tool result is replaced by a text for a model that cannot read it', async (t) => {
  const url = 'data:image/png;base64,AAAA'
  const image = { type: 'image_url', image_url: { url } }
  const rig = await setUp(t, qwen, [hermes('run', { a: 1 }), 'I cannot see it.', 'Still not.'])
  const first = await rig.sendRequest([user('look')], { tools: TOOLS })
  const { id } = getCalls(first)[0]!
  const messages = [user('look'), getEcho(first), { role: 'tool', tool_call_id: id, content: [image] }]
  const second = await rig.sendRequest(messages as ChatMessage[], { tools: TOOLS })
  t.match(getAnnotations(second).prompt, { reason: 'extended' })
  t.match(getText(second), /\[An image\. This model cannot see images that tools return\.\]/)
  t.match(second.lastMessage!.value, { content: [image] }, 'recorded as it was sent')
  const more = [...messages, { role: 'assistant', content: 'I cannot see it.' }, user('sure?')]
  t.match(getAnnotations(await rig.sendRequest(more as ChatMessage[], { tools: TOOLS })).prompt, {
    reason: 'extended',
  })
  const own = [{ role: 'user', content: [image] }] as ChatMessage[]
  await t.rejects(rig.sendRequest(own), { code: 'unsupported' }, "an agent's own is rejected")
})

t.test(
  'a lone surrogate that an agent replaces, or a number that it rounds, does not end a row',
  async (t) => {
    const sampled =
      '<tool_call>\n{"name": "run", "arguments": {"c": "\\ud800x", "n": 12345678901234567890}}\n</tool_call>'
    const rig = await setUp(t, qwen, [sampled, 'Done.'])
    const first = await rig.sendRequest([user('task')], { tools: TOOLS })
    const echo = getEcho(first, withArguments({ c: '\ufffdx', n: 12345678901234567000 }))
    const second = await rig.sendRequest([user('task'), echo, result(getCalls(first)[0]!.id, 'ok')], {
      tools: TOOLS,
    })
    t.match(getAnnotations(second), { prompt: { reason: 'extended' }, echo: { kinds: ['arguments'] } })
  },
)
