import t from 'tap'
import type { Look } from '../../../../src/cli/top/look.ts'
import { MetricSamples } from '../../../../src/cli/top/look.ts'
import { render, span } from '../../../../src/cli/top/render.ts'
import { Looks } from '../../../../src/cli/top/snapshot.ts'

const START_S = 1_700_000_000

interface Told {
  atS?: number
  startS?: number
  completed?: number
  tokens?: number
  openTokens?: number
  inexact?: number
  paused?: boolean
  members?: Partial<Look['members'][number]>[]
  turns?: number
}

function lookOf(told: Told = {}): Look {
  const { atS = 10, startS = START_S, completed = 0, tokens = 0, inexact = 0, members = [{}] } = told
  const { openTokens = 0, turns = 0 } = told
  return {
    atMs: (START_S + atS) * 1_000,
    health: { status: 'ok', mode: 'local', version: '1.2.3', paused_since: told.paused ? START_S : null },
    members: members.map((member, i) => ({
      worker_id: `engine-${i}`,
      kind: 'engine',
      url: '',
      api_path: '',
      engine: 'vllm',
      model_name: null,
      weight: 1,
      version: null,
      load: 3,
      active_requests: 3,
      max_concurrency: 16,
      models: [],
      weight_version: 'step-7',
      healthy: true,
      error: null,
      draining: false,
      connected_since: START_S,
      ...member,
    })),
    open: {
      turns: Array.from({ length: turns }, (_, i) => ({
        session_id: `s-${i}`,
        index: i,
        started_at: START_S,
        open_ms: 61_000 - i,
        sampled_tokens: 1_234,
      })),
      total: turns,
      sampled_tokens: openTokens,
    },
    metrics: new MetricSamples(
      [
        '# HELP llm_proxy_turns_total Turns that ended',
        `llm_proxy_turns_total{dialect="chat",outcome="completed"} ${completed}`,
        'llm_proxy_turns_total{dialect="chat",outcome="failed"} 2',
        'llm_proxy_turns_total{dialect="messages",outcome="failed"} 1',
        `llm_proxy_completion_tokens_total ${tokens}`,
        'llm_proxy_prompt_tokens_total 0',
        `llm_proxy_inexact_turns_total{reason="other"} ${inexact}`,
        `llm_proxy_paused ${told.paused ? 1 : 0}`,
        'llm_proxy_turns_in_flight{phase="queued"} 4',
        'llm_proxy_turns_in_flight{phase="engine"} 3',
        'llm_proxy_turns_in_flight{phase="proxy"} 0',
        `process_start_time_seconds ${startS}`,
      ].join('\n'),
    ),
  }
}

t.test('series of one name are added up, whatever labels a front puts on them', async (t) => {
  const samples = new MetricSamples(
    'a_total{node="1/2",x="y"} 1\na_total{node="2/2",x="y"} 2.5\na_total_b 9\nc 3\n',
  )
  t.equal(samples.sum('a_total'), 3.5)
  t.equal(samples.sum('a_total', 'x="y"'), 3.5)
  t.equal(samples.sum('a_total', 'x="z"'), 0)
  t.equal(samples.sum('c'), 3)
})

t.test('rates are told over the looks of ten seconds, with the tokens of open turns', async (t) => {
  const looks = new Looks()
  t.equal(looks.add(lookOf()).per_second.sampled_tokens, null, 'one look knows of no rate')
  const second = looks.add(lookOf({ atS: 12, tokens: 100, openTokens: 20, completed: 4 }))
  t.match(second.per_second, { sampled_tokens: 60, turns: 2 })
  t.equal(looks.add(lookOf({ atS: 13 })).per_second.sampled_tokens, 0, 'what failed is no rate below 0')
  looks.add(lookOf({ atS: 30, tokens: 1_000 }))
  t.equal(looks.add(lookOf({ atS: 31, tokens: 1_100 })).per_second.sampled_tokens, 100)
})

t.test('a proxy that was started anew is not compared with what it was before', async (t) => {
  const looks = new Looks()
  looks.add(lookOf({ tokens: 5_000 }))
  const { per_second: rates, uptime_s } = looks.add(lookOf({ atS: 100, startS: START_S + 90, tokens: 7 }))
  t.equal(rates.sampled_tokens, null)
  t.equal(uptime_s, 10)
})

t.test('a picture tells of the proxy, its members and its slowest turns', async (t) => {
  const look = lookOf({
    completed: 2_000,
    inexact: 5,
    paused: true,
    members: [{}, { healthy: false, error: 'no answer\u001b[2J' }],
    turns: 1,
  })
  t.strictSame(render(new Looks().add(look), 'http://proxy'), [
    'http://proxy, llm-proxy 1.2.3, local, up 10 s: ok',
    'calls     3 of 16 at engines, 4 wait, 0 in the proxy',
    '          paused for 10 s: new calls wait',
    'tokens    -/s sampled, -/s in prompts',
    'turns     -/s; 2,000 completed, 3 failed, 0 aborted; 5 not exact (0.3 %)',
    'sessions  0 active',
    '',
    'NAME      KIND  LOAD  WEIGHTS  STATE',
    'engine-1  vllm  3/16  step-7   no answer [2J',
    'engine-0  vllm  3/16  step-7   up',
    '',
    'SLOWEST OPEN TURNS  TURN   OPEN FOR  SAMPLED',
    's-0                    0  1 min 1 s    1,234',
  ])
})

t.test('nobody there and nothing open is said in words', async (t) => {
  const lines = render(new Looks().add(lookOf({ members: [] })), 'http://proxy')
  t.strictSame(lines.slice(-3), ['No engine or worker is here.', '', 'No turn is open.'])
  t.match(lines[3], /0 completed, 3 failed, 0 aborted$/)
})

t.test('a picture has no more lines than the terminal, and counts what it leaves out', async (t) => {
  for (const [members, turns] of [
    [1, 0],
    [0, 40],
    [1, 40],
    [40, 0],
    [40, 1],
    [40, 40],
  ] as const) {
    const look = lookOf({ members: Array.from({ length: members }, () => ({})), turns })
    const snapshot = new Looks().add(look)
    for (const height of [12, 20, 24, 50, 100]) {
      const lines = render(snapshot, 'http://proxy', height)
      const name = `${members} members, ${turns} turns, ${height} lines`
      t.ok(lines.length <= height, name)
      const told = (pattern: RegExp) => lines.filter((line) => pattern.test(line)).length
      const more = lines.reduce((sum, line) => sum + Number(/^and (\d+) more$/.exec(line)?.[1] ?? 0), 0)
      t.equal(told(/^engine-/) + told(/^s-/) + more, members + turns, name)
    }
  }
})

t.test('a time is told in its two largest units', async (t) => {
  t.strictSame([0.9, 59.9, 60, 3_599, 3_600, 90_061].map(span), [
    '0 s',
    '59 s',
    '1 min 0 s',
    '59 min 59 s',
    '1 h 0 min',
    '1 d 1 h',
  ])
})
