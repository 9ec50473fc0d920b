/** Checks of the turns and rows of a session after its agent has completed the task. */
import type { Test } from 'tap'
import type { FinishedProgram } from './programs.ts'
import type { ScriptedToolCall, Step } from './script.ts'

export interface Turn {
  turn_id: string
  index: number
  /** The agent role of the request, see `docs/lines.md`. */
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
  const replaceFolder = (toolCalls: readonly ScriptedToolCall[]): unknown =>
    JSON.parse(JSON.stringify(toolCalls).replaceAll('$<folder>', folder))
  t.strictSame(
    turns.map((turn) => ({
      reasoning: turn.reasoning_content?.trim() ?? undefined,
      content: turn.completion_text.trim(),
      toolCalls: turn.tool_calls.map(toScriptedToolCall),
      finishReason: turn.finish_reason,
    })),
    steps.map(({ reasoning, content = '', toolCalls = [] }) => ({
      reasoning,
      content,
      toolCalls: replaceFolder(toolCalls),
      finishReason: toolCalls.length > 0 ? 'tool_calls' : 'stop',
    })),
    'the turns are the steps of the script',
  )
}

function toScriptedToolCall({
  function: { name, arguments: json },
}: Turn['tool_calls'][number]): ScriptedToolCall {
  return { tool: name, arguments: JSON.parse(json) }
}

/** Checks that each turn is trained in one row, after its own prompt and with its own tokens and logprobs. */
export function checkRows(t: Test, turns: readonly Turn[], rows: readonly Row[]): void {
  const byId = new Map(turns.map((turn) => [turn.turn_id, turn]))
  for (const row of rows) {
    t.equal(row.exact, true, 'the row is exact')
    const sequence = [...row.prompt_ids, ...row.response_ids]
    const sampled = new Set<number>()
    for (const { turn_id, start, end, trained } of row.turns) {
      const turn = byId.get(turn_id)!
      const prompt = sequence.slice(0, row.prompt_ids.length + start)
      checkEqualIds(
        t,
        prompt,
        turn.prompt_token_ids,
        `turn ${turn.index}: the prompt that the engine received`,
      )
      checkEqualIds(t, row.response_ids.slice(start, end), turn.completion_token_ids, 'the tokens as sampled')
      const logprobs = trained ? turn.completion_logprobs : turn.completion_logprobs.map(() => 0)
      checkEqualIds(t, row.response_logprobs.slice(start, end), logprobs, 'with their logprobs')
      if (trained) for (let offset = start; offset < end; offset += 1) sampled.add(offset)
    }
    const mask = row.response_ids.map((_, index) => (sampled.has(index) ? 1 : 0))
    checkEqualIds(t, row.response_mask, mask, 'the mask is 1 for exactly these tokens')
  }
  const trained = rows.flatMap((row) => row.turns.filter((turn) => turn.trained).map((turn) => turn.index))
  t.strictSame(
    trained.sort((a, b) => a - b),
    turns.map((turn) => turn.index),
    'each turn is trained once',
  )
}

/** Checks that a program exited with 0, that its main turns are one exact row, and that no other turn is in a row. */
export function checkOneRow(t: Test, run: FinishedProgram & RecordedSession, turnCount: number): void {
  t.equal(run.code, 0, 'it exits with 0', { output: run.output })
  const main = run.turns.filter(({ line }) => line === 'main')
  t.equal(main.length, turnCount, 'its turns')
  t.equal(run.rows.length, 1, 'one row')
  checkRows(t, main, run.rows)
}

/**
 * Reports the first difference only: prompts have tens of thousands of ids, so a complete diff is slow and hard to
 * read.
 */
function checkEqualIds(
  t: Test,
  actual: readonly number[],
  expected: readonly number[],
  message: string,
): void {
  const differsAt = actual.findIndex((number, index) => number !== expected[index])
  const isEqual = differsAt === -1 && actual.length === expected.length
  t.ok(isEqual, message, { differsAt, actual: actual.length, expected: expected.length })
}

/** Returns the last completion of each row by agent role; sub-agents are not distinguished. */
export function getLastCompletions(turns: readonly Turn[], rows: readonly Row[]): Record<string, string> {
  return Object.fromEntries(
    rows.map(({ line, turns: spans }) => {
      const last = turns.find(({ index }) => index === spans.at(-1)?.index)
      return [line.replace(/:.*/, ''), last?.completion_text ?? '']
    }),
  )
}
