/** Clients of this version with a proxy of an earlier one, whose responses have only the former names. */
import { join } from 'node:path'
import t from 'tap'
import { HttpClient } from '../../src/rollout/http-client.ts'
import { ProxyClient } from '../../src/rollout/proxy-client.ts'
import { waitForOutput } from '../helpers/children.ts'
import { extractRelease, missingRelease } from '../helpers/earlier-release.ts'
import { startEngine } from '../helpers/engine.ts'
import { runLlmProxy, startLlmProxy } from '../helpers/llm-proxy.ts'

/** The last commit before the public names of 0.2.0. */
const COMMIT = 'c7762b7f'

t.test(
  'the rollout client and a command read and reward sessions of an earlier proxy',
  { skip: missingRelease(COMMIT) },
  async (t) => {
    const folder = t.testdir({})
    const launcher = extractRelease(COMMIT, join(folder, 'old'))
    const engine = await startEngine(t)
    const args = ['serve', '--port', '0', '--engine-url', engine.url, '--db', join(folder, 'proxy.db')]
    const old = startLlmProxy(args, { launcher })
    t.teardown(() => old.kill('SIGKILL'))
    const [url] = await waitForOutput(old.stdout, /http:\/\/[\d.]+:\d+/)
    const http = new HttpClient()
    t.teardown(() => http.close())
    const client = new ProxyClient({ proxyUrl: url, http })
    const { signal } = new AbortController()
    await client.createSession({ session_id: 's', metadata: { line: 'mine' }, sampling_params: {} }, signal)
    const response = await fetch(`${url}/s/v1/chat/completions`, {
      method: 'POST',
      headers: { 'content-type': 'application/json', 'x-llm-proxy-line': 'subagent:critic' },
      body: JSON.stringify({ model: 'embedded', max_tokens: 4, messages: [{ role: 'user', content: 'Hi' }] }),
    })
    t.equal(response.status, 200, await response.text())
    const body = JSON.stringify({ reward: 0, lines: { 'subagent:critic': -1 } })
    const init = { method: 'POST', headers: { 'content-type': 'application/json' }, body }
    t.equal((await fetch(`${url}/sessions/s/reward`, init)).status, 200)
    await client.setReward('s', { reward: 0.5, components: {} }, signal)
    await client.complete('s', signal)
    const { trajectories } = await client.trajectories('s', { select: 'all' }, signal)
    t.match(trajectories, [{ agent_role: 'subagent:critic', reward: -1 }], 'the reward of the role stays')
    const listed = await runLlmProxy(['sessions', 'list', '--json', '--url', url])
    t.equal(listed.code, 0, listed.stderr)
    const [session] = JSON.parse(listed.stdout)
    t.match(session, { metadata: { line: 'mine' }, reward_agent_roles: { 'subagent:critic': -1 } })
    const shown = await runLlmProxy(['sessions', 'show', 's', '--url', url])
    t.equal(shown.code, 0, shown.stderr)
    t.match(shown.stdout, 'subagent:critic')
    t.notOk('agent_role' in session.metadata, 'metadata has the names of the trainer')
  },
)
