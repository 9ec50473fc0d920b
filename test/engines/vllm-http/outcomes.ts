/** Runs vLLM's HTTP tests against a URL, and parses pytest's report of each case. */
import { readFileSync, rmSync } from 'node:fs'
import { delimiter } from 'node:path'
import { runProgram } from '../../agents/parts/programs.ts'
import { type Difference, EXCLUDED, type ProxyMode } from './differences.ts'
import type { HttpTests } from './install.ts'

/** Paths below `tests/entrypoints`. Other files need models of another kind, GPUs, or flags that exclude each other. */
const FILES = [
  'anthropic/test_messages.py',
  'openai/chat_completion/test_chat.py',
  'openai/chat_completion/test_chat_completion.py',
  'openai/chat_completion/test_chat_echo.py',
  'openai/chat_completion/test_chat_logit_bias_validation.py',
  'openai/chat_completion/test_completion_with_function_calling.py',
  'openai/chat_completion/test_include_reasoning.py',
  'openai/chat_completion/test_logprob_token_ids.py',
  'openai/completion/test_completion.py',
  'openai/completion/test_prompt_validation.py',
  'openai/responses/test_basic.py',
  'openai/responses/test_errors.py',
  'openai/responses/test_function_call.py',
  'openai/responses/test_simple.py',
  'openai/responses/test_stateful.py',
  'openai/test_chunked_prompt.py',
  'openai/test_return_token_ids.py',
  'openai/test_return_tokens_as_ids.py',
  'serve/tokenize/test_tokenization.py',
]
const FOLDER = 'tests/entrypoints/'
const LIMIT_MS = 1_500_000
/** pytest's exit codes after a complete run: without and with failed cases. */
const COMPLETE = [0, 1]

export interface Outcome {
  case: string
  outcome: 'passed' | 'failed' | 'skipped'
  /** The end of the failure's report. */
  reason: string
}

interface Target {
  url: string
  /** File for pytest's report; it is replaced. */
  file: string
}

/**
 * Returns the outcome of each case by its name.
 * @param cases names, or all cases of all files
 * @throws Error if pytest does not complete
 */
export async function runCases(
  python: string,
  { packages, sources, hub }: HttpTests,
  { url, file }: Target,
  cases: readonly string[] = FILES.map((name) => FOLDER + name),
): Promise<Map<string, Outcome>> {
  rmSync(file, { force: true })
  const options = ['-q', '-p', 'outcomes', '-p', 'no:cacheprovider', '--rootdir', sources]
  const excluded = EXCLUDED.flatMap((name) => ['--deselect', FOLDER + name])
  const env = {
    ...process.env,
    PYTHONPATH: [import.meta.dirname, packages, sources].join(delimiter),
    PYTHONDONTWRITEBYTECODE: '1',
    CUDA_VISIBLE_DEVICES: '',
    HF_HUB_CACHE: hub,
    HF_HUB_OFFLINE: '1',
    TARGET_URL: url,
    OUTCOMES: file,
  }
  const args = ['-m', 'pytest', ...options, ...excluded, ...cases]
  const { code, output } = await runProgram({ command: python, args, cwd: sources, env }, LIMIT_MS)
  if (code === null || !COMPLETE.includes(code))
    throw new Error(`pytest ended with ${code}: ${output.slice(-4_000)}`)
  return parseOutcomes(readFileSync(file, 'utf8'))
}

/** Parses the report. A case that fails in one phase has failed. */
function parseOutcomes(text: string): Map<string, Outcome> {
  const outcomes = new Map<string, Outcome>()
  for (const line of text.trim().split('\n')) {
    const outcome: Outcome = JSON.parse(line)
    if (outcomes.get(outcome.case)?.outcome !== 'failed') outcomes.set(outcome.case, outcome)
  }
  return outcomes
}

export interface Comparison {
  /** Cases that pass with vLLM alone and fail behind the proxy, without being listed. */
  unlisted: Outcome[]
  /** Listed tests whose cases all pass. */
  passing: Difference[]
}

/** Compares the outcomes of a mode with those of vLLM alone; only cases that vLLM passes count. */
export function compareOutcomes(
  vllm: ReadonlyMap<string, Outcome>,
  proxy: ReadonlyMap<string, Outcome>,
  differences: readonly Difference[],
  mode: ProxyMode,
): Comparison {
  const failed = [...proxy.values()].filter(
    (outcome) => outcome.outcome !== 'passed' && vllm.get(outcome.case)?.outcome === 'passed',
  )
  const listed = differences.filter(({ modes }) => modes.includes(mode))
  const isListedAs = ({ case: name }: Outcome, { test }: Difference) => name.split('[')[0] === FOLDER + test
  return {
    unlisted: failed.filter((outcome) => !listed.some((difference) => isListedAs(outcome, difference))),
    passing: listed.filter((difference) => !failed.some((outcome) => isListedAs(outcome, difference))),
  }
}
