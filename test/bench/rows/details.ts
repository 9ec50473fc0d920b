/** The cost of each kind of recorded token data: bytes on disk, and CPU time of the proxy, per turn. */
import { readdirSync, statSync } from 'node:fs'
import { join } from 'node:path'
import { type Child, Children } from '../parts/children.ts'
import { getCpuSeconds } from '../parts/proc-stat.ts'
import { computeSpread, type Spread } from '../parts/statistics.ts'
import { formatFigure, renderTable } from '../parts/table.ts'
import { Targets } from '../parts/targets.ts'
import { generateProse } from '../parts/text.ts'
import { ALTERNATIVES, EXPERTS_PER_TOKEN, LAYERS, MASK_IDS } from '../parts/token-data-sizes.ts'
import type { Bench, Row } from './row.ts'

/** The values of the proxy's `--record`, and the data that the engine reports. */
const KINDS = [
  'none',
  'sampling_mask',
  `top_logprobs:${ALTERNATIVES}`,
  'prompt_logprobs',
  'routed_experts',
  'weight_versions',
]
const ROUNDS = { full: 5, quick: 1 }
const SESSIONS_PER_ROUND = { full: 4, quick: 1 }
const TURNS = 10
const MAX_TOKENS = 200
/** The size of a user message: with the completion's 800 bytes, a turn adds 600 tokens to the conversation. */
const USER_BYTES = 1_600

interface Variant {
  readonly kind: string
  readonly db: string
  readonly proxy: Child
  readonly cpuMs: number[]
  turns: number
}

export const details: Row = async (bench) => {
  const variants = await measure(bench)
  const figures = variants.map(({ kind, db, cpuMs, turns }) => ({
    kind,
    bytes: getSize(bench.folder, db) / turns,
    cpuMs: computeSpread(cpuMs),
  }))
  const none = figures[0]!
  return {
    row: 'details',
    report: [
      `### Details: a turn of ${MAX_TOKENS} tokens in sessions of ${TURNS} turns, with one kind recorded`,
      renderTable(
        ['recorded', 'bytes/turn', 'more than none', 'CPU ms/turn', 'min–max', 'of none'],
        figures.map(({ kind, bytes, cpuMs }) => [
          kind,
          formatFigure(bytes),
          formatFigure(bytes - none.bytes),
          formatFigure(cpuMs.median),
          formatRange(cpuMs),
          `${formatFigure(cpuMs.median / none.cpuMs.median)} ×`,
        ]),
      ),
      `A mask of ${MASK_IDS} ids per token, experts of ${LAYERS} layers with ${EXPERTS_PER_TOKEN} each; two versions per response.`,
    ].join('\n\n'),
    aims: [],
    figures,
  }
}

const formatRange = ({ min, max }: Spread) => `${formatFigure(min)}–${formatFigure(max)}`

/** Measures the proxies alternately, and stops them, so that their databases are complete. */
async function measure(bench: Bench): Promise<Variant[]> {
  await using children = new Children()
  const variants: Variant[] = []
  for (const kind of KINDS) variants.push(await startVariant(bench, children, kind))
  const size = bench.quick ? 'quick' : 'full'
  let session = 0
  // The first round warms up.
  for (let round = -1; round < ROUNDS[size]; round += 1) {
    for (const variant of variants) {
      const before = getCpuSeconds(variant.proxy.pid)
      for (let count = 0; count < SESSIONS_PER_ROUND[size]; count += 1)
        await converse(`${variant.proxy.url}/details-${session++}/v1/chat/completions`, session)
      const turns = SESSIONS_PER_ROUND[size] * TURNS
      variant.turns += turns
      if (round >= 0) variant.cpuMs.push(((getCpuSeconds(variant.proxy.pid) - before) * 1000) / turns)
    }
  }
  return variants
}

async function startVariant(bench: Bench, children: Children, kind: string): Promise<Variant> {
  const name = kind.split(':')[0]!
  const script = join(import.meta.dirname, '../processes/token-data-engine.ts')
  const engine = await children.start({ name: `token data engine (${name})`, args: [script, '--kind', name] })
  const db = `details-${name}.db`
  const proxy = await new Targets(children, engine.url).startLocal({
    db: join(bench.folder, db),
    cpuProfileFolder: bench.cpuProfileFolder,
    args: kind === 'none' ? [] : ['--record', kind],
  })
  return { kind, db, proxy, cpuMs: [], turns: 0 }
}

function getSize(folder: string, db: string): number {
  const files = readdirSync(folder).filter((file) => file.startsWith(db))
  return files.reduce((sum, file) => sum + statSync(join(folder, file)).size, 0)
}

/** Runs one agent's conversation: each completion becomes part of the next request. */
async function converse(url: string, seed: number): Promise<void> {
  const messages = [{ role: 'system', content: 'You mend programs.' }]
  for (let turn = 0; turn < TURNS; turn += 1) {
    messages.push({ role: 'user', content: generateProse(USER_BYTES, seed * TURNS + turn) })
    const response = await fetch(url, {
      method: 'POST',
      headers: { 'content-type': 'application/json' },
      body: JSON.stringify({ model: 'stand-in', messages, max_tokens: MAX_TOKENS }),
    })
    if (!response.ok) throw new Error(`turn ${turn} failed: ${await response.text()}`)
    const { choices } = (await response.json()) as { choices: { message: { content: string } }[] }
    messages.push({ role: 'assistant', content: choices[0]!.message.content })
  }
}
