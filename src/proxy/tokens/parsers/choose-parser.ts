/** Which family of markup a model writes. */
import { ProxyError } from '../../../base/errors.ts'
import { blockFamily, THINK } from './block-parser.ts'
import { functionaryV32, museGlimmer } from './channel-families.ts'
import { deepseek, deepseekV31 } from './deepseek.ts'
import { gemma4 } from './gemma4.ts'
import { harmony } from './harmony.ts'
import {
  apertus,
  apriel,
  cohere,
  commandRPlus,
  functionaryV31,
  gigaChat3,
  granite,
  hermes,
  hunyuanA13b,
  kimi,
  minimaxM1,
  nemotronJson,
  phi4Mini,
  solarOpen,
} from './json-families.ts'
import { glm, hunyuan, hunyuanOpenSource } from './keyed-families.ts'
import { lfm2 } from './lfm2.ts'
import { llama3 } from './llama3.ts'
import { minimaxM3 } from './minimax-m3.ts'
import { mistral } from './mistral.ts'
import type { ParserFamily } from './output-parser.ts'
import {
  deepseekV4,
  deepseekV32,
  kimiK3,
  mimo,
  miniCpm5,
  minimaxM2,
  qwen3Coder,
  seedOss,
} from './tagged-families.ts'

/** Models whose templates know no tools: `<think>…</think>` at the beginning is reasoning, all else is content. */
export const plain = blockFamily('plain', [], { reasoning: THINK })

/**
 * What a template must have in it, all of it, for a family to be chosen. The order matters: several of the later signs
 * occur in earlier families' templates too.
 */
const SIGNS: readonly (readonly [signs: readonly string[], family: ParserFamily])[] = [
  [['<|channel|>', '<|message|>'], harmony],
  [['<atem:invoke name='], museGlimmer],
  [['<|tool_call>call:', '<|"|>'], gemma4],
  [[']<]minimax[>[', '<invoke name='], minimaxM3],
  [["open_tag('tools')", "open_tag('call'"], kimiK3],
  [['<|tool_call:name|>', '<|tool_call:args|>'], solarOpen],
  [['[BEGIN FINAL RESPONSE]', '<tool_calls>['], apriel],
  [['<function name=', '<param name='], miniCpm5],
  [['<seed:tool_call>'], seedOss],
  [['<minimax:tool_call>', '<invoke name='], minimaxM2],
  [['｜DSML｜', 'function_calls'], deepseekV32],
  [['｜DSML｜', 'tool_calls>'], deepseekV4],
  [['tool_sep', 'arg_key', ':opensource'], hunyuanOpenSource],
  [['tool_sep', 'arg_key', 'tool_calls'], hunyuan],
  [['<tool_call>', '<function=', 'You are MiMo'], mimo],
  [['<tool_call>', '<function='], qwen3Coder],
  [['<tool_call>', '<arg_key>'], glm],
  [['<|tool_call_begin|>', '<|tool_call_argument_begin|>'], kimi],
  [['<｜tool▁call▁begin｜>', '```json'], deepseek],
  [['<｜tool▁call▁begin｜>'], deepseekV31],
  [['[TOOL_CALLS]'], mistral],
  [['<|START_ACTION|>', 'tool_name'], cohere],
  [['<|tools_prefix|>'], apertus],
  [['<|tool_call_start|>'], lfm2],
  [['<|tool_list_start|>'], lfm2],
  [['List of tools: ['], lfm2],
  [['<TOOLCALL>'], nemotronJson],
  [['<tool_calls>', '<answer>'], hunyuanA13b],
  [['<|tool|>', '<|/tool|>'], phi4Mini],
  [['functools'], phi4Mini],
  [['<|tool_call|>'], granite],
  [['<tool_call>', '"arguments"'], hermes],
  [['<tool_call>', '"name"'], hermes],
  [['<tool_calls>\\n{"name": <tool-name>'], minimaxM1],
  [['<|function_call|>', '<|message_sep|>'], gigaChat3],
  [['function call', '<|role_sep|>'], gigaChat3],
  [["Write \\'Action:\\'", '```json'], commandRPlus],
  [['start_tag => `<function`'], functionaryV31],
  [['>>>all'], functionaryV32],
  // Its template for chat alone shows no calls.
  [['named SmolLM'], hermes],
  [['<|start_header_id|>', '"parameters"'], llama3],
]

/** The names are vLLM's, where it has one. */
export const PARSER_FAMILIES: ReadonlyMap<string, ParserFamily> = new Map(
  [...SIGNS.map(([, family]) => family), plain].map((family) => [family.name, family]),
)

/** What vLLM and SGLang call the same formats, or what serves those models there. */
const OTHER_NAMES: Readonly<Record<string, ParserFamily>> = {
  openai: harmony,
  'gpt-oss': harmony,
  qwen: hermes,
  qwen25: hermes,
  qwen3: hermes,
  qwq: hermes,
  granite4: hermes,
  smollm3: hermes,
  qwen3_xml: qwen3Coder,
  nemotron_3: qwen3Coder,
  step3p5: qwen3Coder,
  glm47: glm,
  deepseek_r1: deepseek,
  deepseekv3: deepseek,
  deepseekv31: deepseekV31,
  deepseekv32: deepseekV32,
  'minimax-m2': minimaxM2,
  llama3: llama3,
  cohere_command4: cohere,
  apertus2509: apertus,
  hunyuan,
}

/** A family, and what speaks for it. */
export interface ParserChoice {
  readonly family: ParserFamily
  /** `response_template`: the model's own says how answers are read, and the family what engines are held to. */
  readonly chosenBy: 'name' | 'template' | 'response_template'
  /** Texts of the template that only this family's have; none if nothing was known. */
  readonly evidence: readonly string[]
  /** What an operator must know: calls in a format that is not known stay text. */
  readonly warning?: string | undefined
}

/** Llama 3's own templates for chat show no tools, and its models write their calls all the same. */
const LLAMA_3_TURN = '<|start_header_id|>'

/** The family that a chat template teaches the model to write; `plain` if it teaches none that is known. */
export function chooseParser(templateSource: string): ParserChoice {
  const has = (sign: string) => templateSource.includes(sign)
  const [evidence, family] = SIGNS.find(([signs]) => signs.every(has)) ?? [[], plain]
  const showsTools = /\btools?\b|tool_calls/.test(templateSource)
  if (family === plain && !showsTools && has(LLAMA_3_TURN)) {
    return { family: llama3, chosenBy: 'template', evidence: [LLAMA_3_TURN] }
  }
  const isUnknown = family === plain && showsTools
  return { family, chosenBy: 'template', evidence, warning: isUnknown ? UNKNOWN_FORMAT : undefined }
}

const UNKNOWN_FORMAT =
  "the chat template shows tools, but in no format of tool calls that is known: calls stay text in the model's answers; " +
  'name the format with --tool-parser'

/** @throws ProxyError `config_invalid` for an unknown name, with the known ones */
export function findParser(name: string): ParserFamily {
  const family =
    PARSER_FAMILIES.get(name) ?? (Object.hasOwn(OTHER_NAMES, name) ? OTHER_NAMES[name] : undefined)
  if (family !== undefined) return family
  const known = [...PARSER_FAMILIES.keys()].join(', ')
  throw new ProxyError('config_invalid', `there is no output parser called ${name}; there are ${known}`)
}

/** Whether a rendered prompt ends inside a reasoning block that its template opened. */
export function opensReasoning(family: ParserFamily, prompt: string): boolean {
  return family.reasoning !== undefined && prompt.trimEnd().endsWith(family.reasoning.open.trimEnd())
}

/** Whether what follows a rendered prompt may begin with reasoning: its template has not closed a block of it. */
export function leavesRoomToReason({ reasoning }: ParserFamily, prompt: string): boolean {
  return reasoning !== undefined && !prompt.trimEnd().endsWith(reasoning.close)
}
