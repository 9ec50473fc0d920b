/** Clients of this version with a proxy of an earlier one, whose responses have only the former names. */
import { join } from 'node:path'
import t from 'tap'
import Type, { type TSchema } from 'typebox'
import { Value } from 'typebox/value'
import { checkResponse } from '../../src/cli/proxy-client.ts'
import { Workers } from '../../src/proxy/http/operator/workers/schemas.ts'
import * as reads from '../../src/proxy/http/trainer/sessions/read-schemas.ts'
import * as sessions from '../../src/proxy/http/trainer/sessions/schemas.ts'
import { HttpClient } from '../../src/rollout/http-client.ts'
import { ProxyClient } from '../../src/rollout/proxy-client.ts'
import { killChild, waitForOutput } from '../helpers/children.ts'
import { extractRelease, getSkipReason } from '../helpers/earlier-release.ts'
import { startEngine } from '../helpers/engine.ts'
import { runLlmProxy, startLlmProxy } from '../helpers/llm-proxy.ts'

/** The last commit before the public names of 0.2.0. */
const COMMIT = 'c7762b7f'

t.test(
  'the rollout client and a command read and reward sessions of an earlier proxy',
  { skip: getSkipReason(COMMIT) },
  async (t) => {
    const folder = t.testdir({})
    const launcher = extractRelease(COMMIT, join(folder, 'old'))
    const engine = await startEngine(t)
    const args = ['serve', '--port', '0', '--engine-url', engine.url, '--db', join(folder, 'proxy.db')]
    const old = startLlmProxy(args, { launcher })
    t.teardown(() => killChild(old))
    const [url] = await waitForOutput(old.stdout, /http:\/\/[\d.]+:\d+/)
    const http = new HttpClient()
    t.teardown(() => http.close())
    const client = new ProxyClient({ proxyUrl: url, http })
    const { signal } = new AbortController()
    await client.createSession({ session_id: 's', metadata: { line: 'mine' }, sampling_params: {} }, signal)
    const response = await fetch(`${url}/s/v1/chat/completions`, {
      method: 'POST',
      headers: { 'content-type': 'application/json', 'x-llm-proxy-line': 'subagent:critic' },
      body: JSON.stringify({
        model: 'embedded',
        max_tokens: 4,
        messages: [{ role: 'user', content: 'Hi there' }],
      }),
    })
    t.equal(response.status, 200, await response.text())
    const body = JSON.stringify({ reward: 0, lines: { 'subagent:critic': -1 } })
    const init = { method: 'POST', headers: { 'content-type': 'application/json' }, body }
    t.equal((await fetch(`${url}/sessions/s/reward`, init)).status, 200)
    await client.setReward('s', { reward: 0.5, components: {} }, signal)
    await client.complete('s', signal)
    const { trajectories } = await client.getTrajectories('s', { select: 'all' }, signal)
    t.match(trajectories, [{ agent_role: 'subagent:critic', reward: -1 }], 'the reward of the role stays')
    const listed = await runLlmProxy(['sessions', 'list', '--json', '--url', url])
    t.equal(listed.code, 0, listed.stderr)
    const [session] = JSON.parse(listed.stdout)
    t.match(session, { metadata: { line: 'mine' }, reward_agent_roles: { 'subagent:critic': -1 } })
    const shown = await runLlmProxy(['sessions', 'show', 's', '--url', url])
    t.equal(shown.code, 0, shown.stderr)
    t.match(shown.stdout, 'subagent:critic')
    t.notOk('agent_role' in session.metadata, 'metadata has the names of the trainer')
    for (const command of [
      ['sessions', 'tail', '--limit', '1'],
      ['sessions', 'show', 's', '--json'],
      ['workers', 'list'],
      ['sessions', 'grep', 'Hi there'],
    ]) {
      const { code, stderr } = await runLlmProxy([...command, '--url', url])
      t.equal(code, 0, `${command.join(' ')}: ${stderr}`)
    }
  },
)

/** The responses that commands read, with the module that had the schema in the earlier release. */
const RESPONSES = [
  {
    module: 'http/trainer/read',
    schemas: { ...reads },
    names: ['SessionList', 'SearchHits', 'Tree', 'ProxyEvent'],
  },
  {
    module: 'http/trainer/sessions',
    schemas: { ...sessions },
    names: [
      'Session',
      'SessionWithTurns',
      'ShownSessionWithTurns',
      'Trajectories',
      'EndedSession',
      'DeletedSession',
    ],
  },
  { module: 'http/operator/workers', schemas: { Workers }, names: ['Workers'] },
] as const

interface Member {
  /** As in `turns[].usage`. */
  path: string
  /** Removes it from a sample. */
  remove(sample: unknown): void
}

/** Returns a value that has all members, also the optional ones, and one item in each list. */
function createSample(schema: TSchema): unknown {
  if (Type.IsObject(schema))
    return Object.fromEntries(
      Object.entries(schema.properties).map(([name, member]) => [name, createSample(member)]),
    )
  if (Type.IsArray(schema)) return [createSample(schema.items)]
  if (Type.IsUnion(schema)) return createSample(schema.anyOf[0]!)
  return Value.Create(schema)
}

/** Yields the members of objects in a schema; of several types, those of the first one. */
function* listMembers(
  schema: TSchema,
  path = '',
  find: (sample: unknown) => unknown = (sample) => sample,
): Generator<Member> {
  if (Type.IsUnion(schema)) yield* listMembers(schema.anyOf[0]!, path, find)
  if (Type.IsArray(schema))
    yield* listMembers(schema.items, `${path}[]`, (sample) => (find(sample) as unknown[])[0])
  if (!Type.IsObject(schema)) return
  for (const [name, member] of Object.entries(schema.properties)) {
    const memberPath = path === '' ? name : `${path}.${name}`
    const container = (sample: unknown) => find(sample) as Record<string, unknown>
    yield { path: memberPath, remove: (sample) => void delete container(sample)[name] }
    yield* listMembers(member, memberPath, (sample) => container(sample)[name])
  }
}

function isWithin(path: string, other: string): boolean {
  return path.startsWith(`${other}.`) || path.startsWith(`${other}[`)
}

t.test(
  'each member that a later release added to a response may be missing',
  { skip: getSkipReason(COMMIT) },
  async (t) => {
    const folder = join(t.testdir({}), 'old')
    extractRelease(COMMIT, folder)
    let count = 0
    for (const { module, schemas, names } of RESPONSES) {
      const old = await import(join(folder, 'src/proxy', module, 'schemas.ts'))
      for (const name of names) {
        const schema = (schemas as Record<string, TSchema>)[name]!
        const before = new Set([...listMembers(old[name])].map(({ path }) => path))
        t.ok(before.size > 0, name)
        const sample = createSample(schema)
        const added: string[] = []
        t.ok(Value.Check(schema, sample), `a complete ${name}`)
        for (const { path, remove } of listMembers(schema)) {
          // Members of an added member are missing together with it.
          if (before.has(path) || added.some((other) => isWithin(path, other))) continue
          added.push(path)
          const earlier = structuredClone(sample)
          remove(earlier)
          t.doesNotThrow(() => checkResponse(schema, earlier, 200, name), `${name} without ${path}`)
        }
        count += added.length
      }
    }
    t.ok(count > 10, `${count} members`)
  },
)
