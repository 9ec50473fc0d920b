import t, { type Test } from 'tap'
import { loadConfig } from '../../../../src/proxy/config/load.ts'
import type { CommandSpec } from '../../../../src/proxy/config/option.ts'
import { ROLLOUT, type RunnerConfig, SERVER_ROLLOUTS } from '../../../../src/rollout/options.ts'
import { InProcessRollouts } from '../../../../src/rollout/server/in-process-rollouts.ts'
import { type IncomingRequest, sendJson, startScriptedServer } from '../../../helpers/scripted-server.ts'
import { silentLogger } from '../../../helpers/silent-logger.ts'

const NO_ROWS = { reward: null, reward_components: {}, excluded_turns: {}, trajectories: [] }
const SERVE_ROLLOUTS = { name: 'serve', summary: '', options: SERVER_ROLLOUTS } satisfies CommandSpec

/** Starts a proxy whose sessions are completed at once, and which is also the webhook of the agents. */
async function startProxy(t: Test) {
  const respond = ({ path, body }: IncomingRequest) => {
    if (path === '/sessions') return { session_id: body.session_id }
    return path.includes('/trajectories') ? NO_ROWS : { status: 'completed' }
  }
  const server = await startScriptedServer((request, response) => sendJson(response, respond(request)))
  t.teardown(() => server.close())
  const getTasks = () => server.requests.filter(({ path }) => path === '/hook').map(({ body }) => body)
  return { url: server.url, getTasks }
}

/** Starts rollouts with this configuration and the proxy's webhook, and runs one for each request. */
async function runRollouts(t: Test, proxyUrl: string, config: RunnerConfig, requests: object[]) {
  const own = new InProcessRollouts(config, silentLogger)
  t.teardown(() => own.close())
  await own.begin({ proxyUrl, adminKeys: [], tlsCa: undefined })
  for (const request of requests) {
    const { signal } = new AbortController()
    const { response } = own.rollouts.requestRollout({ sample: {}, ...request }, signal)
    t.match(JSON.parse(await response), { status: 'done' })
  }
}

t.test('a request without sampling parameters has those of the server', async (t) => {
  const proxy = await startProxy(t)
  const flags = { runner: 'http', webhookUrl: `${proxy.url}/hook`, samplingParams: '{"temperature": 0.5}' }
  const requests = [{}, { sampling_params: { top_p: 0.9 } }, { sampling_params: {} }]
  await runRollouts(t, proxy.url, loadConfig(ROLLOUT, flags, {}), requests)
  const params = proxy.getTasks().map(({ sampling_params }) => sampling_params)
  t.strictSame(params, [{ temperature: 0.5 }, { top_p: 0.9 }, {}])
})

t.test("a proxy with a runner ignores the trainer's environment variables", async (t) => {
  const variables = {
    LLM_PROXY_IP: 'other.example',
    REMOTE_MODEL_NAME: 'other',
    REMOTE_AGENT_TASK_PATH_TEMPLATE: '/other/{instance_id}',
    REMOTE_AGENT_MAX_RETRIES: 'many',
  }
  Object.assign(process.env, variables)
  t.teardown(() => {
    for (const name of Object.keys(variables)) delete process.env[name]
  })
  const proxy = await startProxy(t)
  const flags = { runner: 'http', webhookUrl: `${proxy.url}/hook` }
  const config = loadConfig(SERVE_ROLLOUTS, flags, process.env) as RunnerConfig
  await runRollouts(t, proxy.url, config, [{ sample: { instance_id: 'a' } }])
  const [{ openai_base_url, model_name, task_path }] = proxy.getTasks() as [Record<string, string>]
  t.match(openai_base_url, new RegExp(`^${proxy.url}/`))
  t.strictSame([model_name, task_path], [null, null])
})
