/** The compared products: how users start them, their URLs for agents, and how trainers read their records. */
import { writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { freePort } from '../../helpers/free-port.ts'
import type { Child, Children } from '../parts/children.ts'
import { Targets } from '../parts/targets.ts'
import { TOKEN_MODEL } from '../parts/token-model.ts'
import { installPeer } from './install.ts'
import { mergeRequests, type Sequence } from './sequences.ts'

interface PeerContext {
  children: Children
  engineUrl: string
  /** The folder for records: the same after a restart. */
  folder: string
}

export interface PeerInstance {
  child: Child
  /** The prefix of `/v1/chat/completions`; `{session}` is replaced by each agent's session, here and below. */
  baseUrl: string
  headers?: Record<string, string>
}

export interface Peer {
  name: string
  /** The requirement for pip; undefined: this clone. */
  requirement?: string
  start(context: PeerContext): Promise<PeerInstance>
  /** Absent for products that record nothing. */
  record?: {
    /** Returns how many completed requests of a session are recorded. */
    countRequests(origin: string, session: string): Promise<number>
    /** Returns what a trainer receives of an ended session. */
    readSequences(origin: string, session: string): Promise<Sequence[]>
  }
}

const READY_MS = 120_000
/** A key that LiteLLM accepts as hard to guess. */
const LITELLM_KEY = 'sk-5f0c6a1b9d3e47e28a90b1c2d3e4f506718293a4b5c6d7e8'

const pipe: Peer = {
  name: 'pipe',
  async start({ children, engineUrl }) {
    const child = await new Targets(children, engineUrl).startPassThrough('pipe')
    return { child, baseUrl: child.url }
  },
}

function createLlmProxyPeer(name: string, args: string[]): Peer {
  return {
    name,
    async start({ children, engineUrl, folder }) {
      const targets = new Targets(children, engineUrl)
      const child = await targets.startLocal({ db: join(folder, 'llm-proxy.db'), args })
      return { child, baseUrl: `${child.url}/{session}` }
    },
    record: {
      async countRequests(origin, session) {
        const { turns = [] } = await readJson(`${origin}/sessions/${session}?ids=false&messages=none`)
        return turns.filter(({ status }: { status: string }) => status === 'completed').length
      },
      async readSequences(origin, session) {
        const { trajectories } = await readJson(`${origin}/sessions/${session}/trajectories`)
        return trajectories.map(
          (row: { prompt_ids: number[]; response_ids: number[]; response_mask: number[] }) => ({
            ids: [...row.prompt_ids, ...row.response_ids],
            mask: [...row.prompt_ids.map(() => 0), ...row.response_mask],
          }),
        )
      },
    },
  }
}

const rllm: Peer = {
  name: 'rllm-model-gateway',
  requirement: 'rllm-model-gateway==0.1.0',
  async start({ children, engineUrl, folder }) {
    const target = await allocateAddress()
    const store = ['--db-path', join(folder, 'traces.db')]
    const child = await children.start({
      ...(await install(this, 'rllm-model-gateway')),
      args: [...target.args, '--worker', engineUrl, ...store],
      healthUrl: `${target.url}/health`,
    })
    return { child, baseUrl: `${target.url}/sessions/{session}` }
  },
  record: {
    countRequests: async (origin, session) => (await readJson(`${origin}/sessions/${session}/traces`)).length,
    async readSequences(origin, session) {
      const traces = await readJson(`${origin}/sessions/${session}/traces`)
      // Each trace is one request; the trainer merges them.
      return mergeRequests(
        traces.map((trace: { prompt_token_ids: number[]; completion_token_ids: number[] }) => ({
          prompt: trace.prompt_token_ids,
          completion: trace.completion_token_ids,
        })),
      )
    },
  },
}

/** LiteLLM records nothing without a PostgreSQL database, and with one it records no token ids. */
const litellm: Peer = {
  name: 'litellm',
  // In later releases the proxy is a separate package, `litellm-proxy`, which PyPI did not have when this was written.
  requirement: 'litellm[proxy]==1.108.7',
  async start({ children, engineUrl, folder }) {
    const target = await allocateAddress()
    const config = join(folder, 'litellm.yaml')
    const engine = { model: 'hosted_vllm/stand-in', api_base: `${engineUrl}/v1`, api_key: 'none' }
    const models = [{ model_name: 'stand-in', litellm_params: engine }]
    // JSON is valid YAML.
    writeFileSync(config, JSON.stringify({ model_list: models }))
    const child = await children.start({
      ...(await install(this, 'litellm')),
      args: ['--config', config, ...target.args],
      // Without it the proxy tries to download a list of prices for ten seconds.
      env: { ...process.env, LITELLM_MASTER_KEY: LITELLM_KEY, LITELLM_LOCAL_MODEL_COST_MAP: 'True' },
      healthUrl: `${target.url}/health/liveliness`,
    })
    return { child, baseUrl: target.url, headers: { authorization: `Bearer ${LITELLM_KEY}` } }
  },
}

const openenv: Peer = {
  name: 'openenv capture',
  requirement: 'openenv==0.10.0',
  async start({ children, engineUrl }) {
    const target = await allocateAddress()
    // A session begins with its first request, as with the others; otherwise each would need a separate request first.
    const options = ['--llm-url', engineUrl, '--model', 'stand-in', '--allow-unregistered']
    const child = await children.start({
      ...(await install(this, 'python')),
      args: ['-m', 'openenv.core.harness.capture.server', ...options, ...target.args],
      healthUrl: `${target.url}/health`,
    })
    return { child, baseUrl: target.url, headers: { authorization: 'Bearer {session}' } }
  },
  record: {
    countRequests: async (origin, session) => (await readJson(`${origin}/sessions/${session}`)).n_turns ?? 0,
    async readSequences(origin, session) {
      const { sequences } = await readJson(`${origin}/sessions/${session}/rollout`)
      return sequences
        .filter(({ trainable }: { trainable: boolean }) => trainable)
        .map((row: { input_ids: number[]; loss_mask: number[] }) => ({
          ids: row.input_ids,
          mask: row.loss_mask,
        }))
    },
  },
}

export const LLM_PROXY = createLlmProxyPeer('llm-proxy', [])
/** Requires an engine that accepts token ids as prompts. */
export const LLM_PROXY_TOKEN_MODE = createLlmProxyPeer('llm-proxy, token mode', ['--tokenizer', TOKEN_MODEL])
/** The products in the order of the table. */
export const PEERS: readonly Peer[] = [pipe, LLM_PROXY, rllm, litellm, openenv]

async function install({ name, requirement }: Peer, program: string) {
  const venv = await installPeer(requirement!, console.error)
  return { name, command: join(venv, 'bin', program), readyMs: READY_MS }
}

async function allocateAddress(): Promise<{ url: string; args: string[] }> {
  const port = await freePort()
  return { url: `http://127.0.0.1:${port}`, args: ['--host', '127.0.0.1', '--port', String(port)] }
}

/**
 * Reads JSON.
 * @returns an empty object if the URL does not exist
 */
// biome-ignore lint/suspicious/noExplicitAny: shapes of other products
async function readJson(url: string): Promise<any> {
  const response = await fetch(url)
  if (response.status === 404) return {}
  if (!response.ok) throw new Error(`${url} returned ${response.status}: ${await response.text()}`)
  return response.json()
}
