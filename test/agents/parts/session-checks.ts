/** Checks of a session after an agent has done its task: its turns and its rows. */
import type { Test } from 'tap'
import type { FinishedProgram } from './programs.ts'
import type { ScriptedCall, Step } from './script.ts'

export interface Turn {
  turn_id: string
  index: number
  /** The purpose of the request, see `docs/lines.md`. */
  line: string
  line_rule: string
  status: string
  dialect: string
  tools: readonly unknown[] | null
  request_messages: readonly { role: string; content: unknown }[]
  completion_text: string
  reasoning_content: string | null
  tool_calls: readonly { function: { name: string; arguments: string } }[]
  finish_reason: string | null
  prompt_token_ids: number[]
  completion_token_ids: number[]
  completion_logprobs: number[]
  usage: { prompt_tokens: number; completion_tokens: number } | null
  error: { code: string } | null
  annotations: {
    prompt?: { reason: string; mismatched?: boolean }
    engine_requests?: { start: number; end: number; end_reason: string }[]
    reasoning_effort?: { requested: string; sent: string | null }
  }
}

export interface Row {
  line: string
  exact: boolean
  prompt_ids: number[]
  response_ids: number[]
  response_mask: number[]
  response_logprobs: number[]
  turns: { turn_id: string; index: number; start: number; end: number; trained: boolean }[]
}

export interface RecordedSession {
  turns: Turn[]
  rows: Row[]
}

/** Checks that the recorded turns match the script. @param folder that the task named */
export function checkScript(t: Test, turns: readonly Turn[], steps: readonly Step[], folder: string): void {
  const inFolder = (calls: readonly ScriptedCall[]): unknown =>
    JSON.parse(JSON.stringify(calls).replaceAll('$<folder>', folder))
  t.strictSame(
    turns.map((turn) => ({
      thinks: turn.reasoning_content?.trim() ?? undefined,
      says: turn.completion_text.trim(),
      calls: turn.tool_calls.map(toCall),
      ended: turn.finish_reason,
    })),
    steps.map(({ thinks, says = '', calls = [] }) => ({
      thinks,
      says,
      calls: inFolder(calls),
      ended: calls.length > 0 ? 'tool_calls' : 'stop',
    })),
    'the turns are the steps of the script',
  )
}

function toCall({ function: { name, arguments: written } }: Turn['tool_calls'][number]): ScriptedCall {
  return { tool: name, arguments: JSON.parse(written) }
}

/** Checks that every sampled token is trained in one row, under its own prompt and with its own logprob. */
export function checkRows(t: Test, turns: readonly Turn[], rows: readonly Row[]): void {
  const byId = new Map(turns.map((turn) => [turn.turn_id, turn]))
  for (const row of rows) {
    t.equal(row.exact, true, 'the row is exact')
    const sequence = [...row.prompt_ids, ...row.response_ids]
    const sampled = new Set<number>()
    for (const { turn_id, start, end, trained } of row.turns) {
      const turn = byId.get(turn_id)!
      const prompt = sequence.slice(0, row.prompt_ids.length + start)
      checkSame(t, prompt, turn.prompt_token_ids, `turn ${turn.index}: the prompt that the engine saw`)
      checkSame(t, row.response_ids.slice(start, end), turn.completion_token_ids, 'the tokens as sampled')
      const logprobs = trained ? turn.completion_logprobs : turn.completion_logprobs.map(() => 0)
      checkSame(t, row.response_logprobs.slice(start, end), logprobs, 'with their logprobs')
      if (trained) for (let offset = start; offset < end; offset += 1) sampled.add(offset)
    }
    const mask = row.response_ids.map((_, index) => (sampled.has(index) ? 1 : 0))
    checkSame(t, row.response_mask, mask, 'the mask is on them and on nothing else')
  }
  const trained = rows.flatMap((row) => row.turns.filter((turn) => turn.trained).map((turn) => turn.index))
  t.strictSame(
    trained.sort((a, b) => a - b),
    turns.map((turn) => turn.index),
    'each turn is trained once',
  )
}

/** Checks that a program ended well, that its main turns are one exact row, and that no other turn is in a row. */
export function checkOneRow(t: Test, run: FinishedProgram & RecordedSession, turnCount: number): void {
  t.equal(run.code, 0, 'it ends well', { output: run.output })
  const main = run.turns.filter(({ line }) => line === 'main')
  t.equal(main.length, turnCount, 'its turns')
  t.equal(run.rows.length, 1, 'one row')
  checkRows(t, main, run.rows)
}

/**
 * Compares the first difference only: prompts have tens of thousands of ids, and a diff of all of them is slow and says
 * less.
 */
function checkSame(t: Test, found: readonly number[], wanted: readonly number[], what: string): void {
  const partAt = found.findIndex((number, index) => number !== wanted[index])
  const isSame = partAt === -1 && found.length === wanted.length
  t.ok(isSame, what, { partAt, found: found.length, wanted: wanted.length })
}

/** Returns what each row ends with, by its line; sub-agents are not distinguished. */
export function lastWords(turns: readonly Turn[], rows: readonly Row[]): Record<string, string> {
  return Object.fromEntries(
    rows.map(({ line, turns: spans }) => {
      const last = turns.find(({ index }) => index === spans.at(-1)?.index)
      return [line.replace(/:.*/, ''), last?.completion_text ?? '']
    }),
  )
}
