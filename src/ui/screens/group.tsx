/** The samples of one task, side by side. */
import { useState } from 'preact/hooks'
import { getJson, sessionPath } from '../lib/api.ts'
import { duration, number, short, visible } from '../lib/format.ts'
import { useKeys } from '../lib/keys.ts'
import { useLoaded } from '../lib/load.ts'
import { go, href } from '../lib/route.ts'
import type { Session, SessionList, Tree } from '../lib/wire.ts'
import { Await, Bar, Empty, Reward, Sources, Tag } from '../parts/parts.tsx'

/** Samples whose turns are looked at: more than a group has. */
const MAX_TREES = 64

interface Sample {
  session: Session
  /** null: without a reward. */
  centred: number | null
  normed: number | null
}

function samplesOf(sessions: readonly Session[]) {
  const rewards = sessions.flatMap(({ reward }) => reward ?? [])
  const mean = rewards.reduce((sum, reward) => sum + reward / rewards.length, 0)
  const variance =
    rewards.reduce((sum, reward) => sum + (reward - mean) ** 2, 0) / Math.max(1, rewards.length - 1)
  const isFlat = rewards.every((reward) => reward === rewards[0])
  const std = isFlat ? 0 : Math.sqrt(variance)
  const samples = sessions.map((session): Sample => {
    const centred = session.reward === null ? null : isFlat ? 0 : session.reward - mean
    return { session, centred, normed: centred === null ? null : std === 0 ? 0 : centred / std }
  })
  samples.sort((a, b) => (b.session.reward ?? -Infinity) - (a.session.reward ?? -Infinity))
  return { samples, mean, std, count: rewards.length, isFlat: isFlat && rewards.length > 1 }
}

export function GroupScreen({ by, value }: { by: string; value: string }) {
  const path = `sessions?limit=1000&metadata.${encodeURIComponent(by)}=${encodeURIComponent(value)}`
  const sessions = useLoaded(async (stop) => (await getJson<SessionList>(path, stop)).sessions, [path])
  return (
    <div class="group scroll">
      <Await of={sessions}>
        {(found) =>
          found.length === 0 ? (
            <Empty title="No session of this group">
              It may have been deleted, or swept after its time to live.
            </Empty>
          ) : (
            <Samples by={by} value={value} sessions={found} />
          )
        }
      </Await>
      <Sources paths={[path]} />
    </div>
  )
}

function Samples({ by, value, sessions }: { by: string; value: string; sessions: readonly Session[] }) {
  const [selected, select] = useState(0)
  const [first, setFirst] = useState<string | undefined>()
  const { samples, mean, std, count, isFlat } = samplesOf(sessions)
  const trees = useLoaded((stop) => treesOf(samples.slice(0, MAX_TREES), stop), [sessions]).value
  const components = [...new Set(sessions.flatMap(({ reward_components }) => Object.keys(reward_components)))]
  const compare = (id: string) => {
    if (first === undefined || first === id) setFirst(first === id ? undefined : id)
    else go(href(['compare'], { a: `${first}#0`, b: `${id}#0` }))
  }
  const current = samples[selected]?.session.session_id
  useKeys([
    { key: 'j', help: 'Next sample', run: () => select((at) => Math.min(samples.length - 1, at + 1)) },
    { key: 'k', help: 'Sample before', run: () => select((at) => Math.max(0, at - 1)) },
    {
      key: 'Enter',
      help: 'Open the sample',
      run: () => current !== undefined && go(href(['session', current])),
    },
    {
      key: 'c',
      help: 'Compare with another: once on each',
      run: () => current !== undefined && compare(current),
    },
  ])
  const range = (values: (number | null)[]): [number, number] => {
    const known = values.filter((each) => each !== null)
    return [Math.min(0, ...known), Math.max(0, ...known)]
  }
  const rewardRange = range(samples.map(({ session }) => session.reward))
  const centredRange = range(samples.map(({ centred }) => centred))
  const normedRange = range(samples.map(({ normed }) => normed))
  const tokenRange: [number, number] = [
    0,
    Math.max(1, ...sessions.map(({ sampled_tokens }) => sampled_tokens)),
  ]
  return (
    <>
      <h1>
        <span class="quiet">{by} =</span> {visible(readable(value))}{' '}
        {isFlat && <Tag kind="warn">no variance: every advantage is 0</Tag>}
      </h1>
      <p class="summary">
        <b>{sessions.length}</b> samples, <b>{count}</b> with a reward · mean {count > 0 ? number(mean) : '–'}{' '}
        · std {count > 1 ? number(std) : '–'}
        {first !== undefined && <> · comparing {visible(first)} with … (press c on another)</>}
      </p>
      <table class="plain-table">
        <thead>
          <tr>
            <th>Sample</th>
            <th>Reward</th>
            {components.map((name) => (
              <th key={name}>{visible(name)}</th>
            ))}
            <th title="(r − mean) / std, as GRPO has it">(r − mean) / std</th>
            <th title="without the division, as Dr. GRPO has it">r − mean</th>
            <th>Turns</th>
            <th>Sampled</th>
            <th>Longest prompt</th>
            <th>Time</th>
            <th>Weights</th>
            <th />
          </tr>
        </thead>
        <tbody>
          {samples.map(({ session, centred, normed }, place) => (
            <tr key={session.session_id} class={place === selected ? 'selected' : ''}>
              <td class="id">
                <i class={`dot ${session.open_turns > 0 ? 'live' : session.status}`} title={session.status} />
                <a href={href(['session', session.session_id])}>{visible(session.session_id)}</a>
              </td>
              <td>
                <Measure value={session.reward} range={rewardRange} kind="reward" />
              </td>
              {components.map((name) => {
                const values = samples.map((sample) => sample.session.reward_components[name] ?? null)
                return (
                  <td key={name}>
                    <Measure
                      value={session.reward_components[name] ?? null}
                      range={range(values)}
                      kind="component"
                    />
                  </td>
                )
              })}
              <td>
                <Measure value={normed} range={normedRange} kind="advantage" />
              </td>
              <td>
                <Measure value={centred} range={centredRange} kind="advantage" />
              </td>
              <td class="num">
                {session.turn_count}
                {session.failed_turns > 0 && <em class="bad"> ✗{session.failed_turns}</em>}
                {session.inexact_turns > 0 && <em class="warn"> ≈{session.inexact_turns}</em>}
              </td>
              <td>
                <Measure value={session.sampled_tokens} range={tokenRange} kind="tokens" />
              </td>
              <td class="num">{longestPrompt(trees?.get(session.session_id))}</td>
              <td class="num">{duration((session.updated_at - session.created_at) * 1000)}</td>
              <td>{weights(trees?.get(session.session_id))}</td>
              <td>
                <button
                  type="button"
                  class={first === session.session_id ? 'on' : ''}
                  onClick={() => compare(session.session_id)}
                >
                  compare
                </button>
              </td>
            </tr>
          ))}
        </tbody>
      </table>
    </>
  )
}

async function treesOf(samples: readonly Sample[], stop: AbortSignal): Promise<Map<string, Tree>> {
  const trees = new Map<string, Tree>()
  const waiting = samples.map(({ session }) => session.session_id)
  const next = async (): Promise<void> => {
    for (let id = waiting.shift(); id !== undefined; id = waiting.shift()) {
      trees.set(id, await getJson<Tree>(sessionPath(id, '/tree'), stop))
    }
  }
  await Promise.all([next(), next(), next(), next()])
  return trees
}

function Measure({ value, range, kind }: { value: number | null; range: [number, number]; kind: string }) {
  if (value === null) return <span class="quiet">–</span>
  return (
    <span class="measure">
      <span class="num">
        {kind === 'reward' ? <Reward value={value} /> : kind === 'tokens' ? short(value) : number(value)}
      </span>
      <Bar value={value} range={range} kind={kind} />
    </span>
  )
}

function longestPrompt(tree: Tree | undefined): string {
  return tree === undefined
    ? '…'
    : short(tree.turns.reduce((most, turn) => Math.max(most, turn.prompt_tokens), 0))
}

function weights(tree: Tree | undefined): string {
  if (tree === undefined) return '…'
  const versions = new Set(tree.turns.flatMap((turn) => [turn.weight_version_start, turn.weight_version_end]))
  versions.delete(null)
  return [...versions].map((version) => visible(version!)).join(' → ') || '–'
}

function readable(value: string): string {
  try {
    return String(JSON.parse(value))
  } catch {
    return value
  }
}
