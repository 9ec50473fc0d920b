/**
 * npm run bench:peers -- [--quick] [--peers pipe,llm-proxy,…] [--loads small,large,replay] [--runs 3] [--json FILE]
 *
 * Compares llm-proxy with alternatives from PyPI, under one load and in front of one engine, and checks what the
 * recorders among them have recorded. README.md explains the figures.
 */
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { parseArgs } from 'node:util'
import { UnsupportedMachineError } from '../engines/vllm/install.ts'
import { parseNames } from '../helpers/parse-names.ts'
import { Children } from './parts/children.ts'
import { LoadGenerator } from './parts/load-generator.ts'
import { describeMachine, formatMachine } from './parts/machine.ts'
import { startReplayer } from './parts/replay-targets.ts'
import { startEngine } from './parts/start-engine.ts'
import { renderTable } from './parts/table.ts'
import { LLM_PROXY_TOKEN_MODE, PEERS, type Peer } from './peers/catalog.ts'
import { measureEcho } from './peers/echo.ts'
import { installPeer } from './peers/install.ts'
import { measureKill } from './peers/kill.ts'
import { type Cell, LOAD_NAMES, measure, renderLoads, type Stage } from './peers/loads.ts'

const { values: options } = parseArgs({
  options: {
    quick: { type: 'boolean', default: false },
    peers: { type: 'string', default: PEERS.map(({ name }) => name).join() },
    loads: { type: 'string', default: LOAD_NAMES.join() },
    runs: { type: 'string', default: '3' },
    json: { type: 'string' },
  },
})
const FULL = { durationMs: 5_000, warmUpMs: 1_500, concurrency: 16, requests: 400 }
const QUICK = { durationMs: 200, warmUpMs: 0, concurrency: 4, requests: 20 }

await main()

async function main(): Promise<void> {
  const plan = options.quick ? QUICK : FULL
  const selected = parseNames(
    options.peers,
    PEERS.map(({ name }) => name),
  )
  const loads = parseNames(options.loads, LOAD_NAMES)
  const folder = mkdtempSync(join(tmpdir(), 'llm-proxy-peers-'))
  process.once('exit', () => rmSync(folder, { recursive: true, force: true }))
  console.log(`${formatMachine(describeMachine(folder))}, ${new Date().toISOString().slice(0, 10)}`)
  await using children = new Children()
  const stage: Stage = {
    ...plan,
    folder,
    engineUrl: (await startEngine(children)).url,
    load: await LoadGenerator.start(children),
    replayer: await startReplayer(children),
  }
  const peers = await install(PEERS.filter(({ name }) => selected.includes(name)))
  const cells = await measureAll(stage, peers, loads)
  console.log(`\n${renderLoads(cells)}`)
  const recorders = peers.filter(({ record }) => record !== undefined)
  const kills = await killAll(stage, recorders, plan.requests)
  const echoes = await echoAll(stage, recorders)
  if (options.json) writeFileSync(options.json, `${JSON.stringify({ cells, kills, echoes }, null, 2)}\n`)
}

/** Returns the peers that this machine can run; others are reported with the reason. */
async function install(peers: readonly Peer[]): Promise<Peer[]> {
  const supported: Peer[] = []
  for (const peer of peers) {
    try {
      if (peer.requirement !== undefined) await installPeer(peer.requirement, console.error)
      supported.push(peer)
    } catch (error) {
      if (!(error instanceof UnsupportedMachineError)) throw error
      console.log(`${peer.name} is skipped: ${error.message}`)
    }
  }
  return supported
}

/** Measures all peers alternately, so that changes in the machine's speed affect all alike. */
async function measureAll(
  stage: Stage,
  peers: readonly Peer[],
  loads: readonly Cell['load'][],
): Promise<Cell[]> {
  const cells = loads.flatMap((load) => peers.map((peer) => ({ load, peer: peer.name, runs: [] }) as Cell))
  for (let run = 0; run < Number(options.runs); run += 1) {
    for (const cell of cells) {
      const peer = peers.find(({ name }) => name === cell.peer)!
      await runOrReport(peer, async () => cell.runs.push(await measure(stage, peer, cell.load, run)))
    }
  }
  return cells
}

async function killAll(stage: Stage, peers: readonly Peer[], requests: number) {
  const rows: string[][] = []
  for (const stream of [false, true]) {
    for (const peer of peers) {
      await runOrReport(peer, async () => {
        const plan = { stream, requests, agents: stage.concurrency }
        const { acknowledged, recorded } = await measureKill(peer, stage.engineUrl, stage.folder, plan)
        const lost = acknowledged - recorded
        rows.push([
          peer.name,
          stream ? 'streamed' : 'complete',
          ...[acknowledged, recorded, lost].map(String),
        ])
      })
    }
  }
  console.log(`\n${renderTable(['killed', 'responses', 'acknowledged', 'recorded', 'lost'], rows)}`)
  return rows
}

async function echoAll(stage: Stage, peers: readonly Peer[]) {
  const rows: string[][] = []
  for (const tidies of [false, true]) {
    for (const peer of [
      ...peers,
      ...(peers.some(({ name }) => name === 'llm-proxy') ? [LLM_PROXY_TOKEN_MODE] : []),
    ]) {
      await runOrReport(peer, async () => {
        const { sampled, trained, trainedAgain, sequences, tokens } = await measureEcho(
          peer,
          stage.folder,
          tidies,
        )
        const figures = [sampled, trained, trainedAgain, sequences, tokens].map(String)
        rows.push([peer.name, tidies ? 'tidied' : 'exact', ...figures])
      })
    }
  }
  const head = [
    'recorded by',
    'echo',
    'sampled tokens',
    'trained',
    'trained again',
    'sequences',
    'tokens in them',
  ]
  console.log(`\n${renderTable(head, rows)}`)
  return rows
}

/** Reports the error of a peer that fails, so that the others continue. */
async function runOrReport(peer: Peer, run: () => Promise<unknown>): Promise<void> {
  try {
    await run()
  } catch (error) {
    // The cause is more informative than the process that then did not stop.
    const cause = error instanceof SuppressedError ? error.suppressed : error
    if (peer.requirement === undefined) throw cause
    console.log(`${peer.name}: ${cause instanceof Error ? cause.message : cause}`)
  }
}
