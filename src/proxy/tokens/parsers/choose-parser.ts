/** Chooses the parser family for a model's output. */
import { ProxyError } from '../../../base/errors.ts'
import { createBlockFamily, THINK } from './block-parser.ts'
import { functionaryV32, museGlimmer } from './channel-families.ts'
import { deepseek, deepseekV31 } from './deepseek.ts'
import { gemma4 } from './gemma4.ts'
import { harmony } from './harmony.ts'
import {
  apertus,
  apriel,
  cohere,
  commandRPlus,
  ernie45,
  functionaryV31,
  gigaChat3,
  granite,
  hermes,
  hunyuanA13b,
  internlm,
  kimi,
  longcat,
  minimaxM1,
  nemotronJson,
  phi4Mini,
  solarOpen,
} from './json-families.ts'
import { createHunyuan4Family, glm, hunyuan, hunyuan4, hunyuanOpenSource } from './keyed-families.ts'
import { lfm2 } from './lfm2.ts'
import { llama3 } from './llama3.ts'
import { minimaxM3 } from './minimax-m3.ts'
import { mistral } from './mistral.ts'
import type { ParserFamily } from './output-parser.ts'
import { llama4Pythonic, olmo3, pythonic } from './pythonic-families.ts'
import {
  deepseekV4,
  deepseekV32,
  deepseekV41,
  dots,
  kimiK3,
  mimo,
  miniCpm5,
  minimaxM2,
  qwen3Coder,
  seedOss,
  step3,
} from './tagged-families.ts'
import { xlam } from './xlam.ts'

/**
 * The family for templates without tools: `<think>…</think>` at the beginning is reasoning, and the rest is content.
 */
export const plain = createBlockFamily('plain', [], { reasoning: THINK })

/**
 * The signs by which families are chosen: texts that a template must all contain. The order matters, because templates
 * of earlier families also contain signs of later ones.
 */
const SIGNS: readonly (readonly [signs: readonly string[], family: ParserFamily])[] = [
  [['<|channel|>', '<|message|>'], harmony],
  [['<atem:invoke name='], museGlimmer],
  [['<|tool_call>call:', '<|"|>'], gemma4],
  [[']<]minimax[>[', '<invoke name='], minimaxM3],
  [["open_tag('tools')", "open_tag('call'"], kimiK3],
  [['def build_chat_segments(', '<|open|>', '<|sep|>'], kimiK3],
  [['<|tool_call:name|>', '<|tool_call:args|>'], solarOpen],
  [['[BEGIN FINAL RESPONSE]', '<tool_calls>['], apriel],
  [['<function name=', '<param name='], miniCpm5],
  [['<｜tool_calls_begin｜>', '<steptml:'], step3],
  [['<dots_function_call>', '<invoke name='], dots],
  [['<longcat_tool_call>'], longcat],
  [['<|action_start|>', '<|plugin|>'], internlm],
  [['<function_calls>', '<functions>'], olmo3],
  [['[func_name1(', '<|python_start|>'], llama4Pythonic],
  [['[func_name1('], pythonic],
  [['Salesforce xLAM'], xlam],
  [['<seed:tool_call>'], seedOss],
  [['<minimax:tool_call>', '<invoke name='], minimaxM2],
  [['｜DSML｜', '<｜System｜>'], deepseekV41],
  [['｜DSML｜', 'function_calls'], deepseekV32],
  [['｜DSML｜', 'tool_calls>'], deepseekV4],
  [['tool_sep', 'arg_key', ':opensource'], hunyuanOpenSource],
  [['tool_sep', 'arg_key', 'tool_calls'], hunyuan],
  [['<tool_calls', '<arg_key'], hunyuan4],
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
  [['<tool_call>', '<response>'], ernie45],
  [['<tool_call>', '"arguments"'], hermes],
  [['<tool_call>', '"name"'], hermes],
  [['<tool_calls>\\n{"name": <tool-name>'], minimaxM1],
  [['<|function_call|>', '<|message_sep|>'], gigaChat3],
  [['function call', '<|role_sep|>'], gigaChat3],
  [["Write \\'Action:\\'", '```json'], commandRPlus],
  [['start_tag => `<function`'], functionaryV31],
  [['>>>all'], functionaryV32],
  // SmolLM's template for chats without tools does not show the format of tool calls.
  [['named SmolLM'], hermes],
  [['<|start_header_id|>', '"parameters"'], llama3],
]

/** The families by name. A name is that of vLLM's parser, if there is one. */
export const PARSER_FAMILIES: ReadonlyMap<string, ParserFamily> = new Map(
  [...SIGNS.map(([, family]) => family), plain].map((family) => [family.name, family]),
)

/** Further names of vLLM's and SGLang's parsers for the same formats or the same models. */
const OTHER_NAMES: Readonly<Record<string, ParserFamily>> = {
  openai: harmony,
  openai_gptoss: harmony,
  'gpt-oss': harmony,
  qwen: hermes,
  qwen25: hermes,
  qwen3: hermes,
  qwen3_json: hermes,
  'qwen3-thinking': hermes,
  qwq: hermes,
  granite4: hermes,
  smollm3: hermes,
  qwen3_xml: qwen3Coder,
  nemotron_3: qwen3Coder,
  nemotron_v3: qwen3Coder,
  nanbeige: qwen3Coder,
  step3p5: qwen3Coder,
  step5: qwen3Coder,
  glm: glm,
  glm47: glm,
  ling3: glm,
  interns1: internlm,
  deepseek_r1: deepseek,
  'deepseek-r1': deepseek,
  'deepseek-v3': deepseek,
  deepseekv3: deepseek,
  deepseekv31: deepseekV31,
  deepseekv32: deepseekV32,
  deepseekv4: deepseekV4,
  'deepseek-v4': deepseekV4,
  deepseekv41: deepseekV41,
  'deepseek-v41': deepseekV41,
  minimax: minimaxM2,
  'minimax-m2': minimaxM2,
  'minimax-m3': minimaxM3,
  llama3: llama3,
  llama4_json: llama3,
  cohere_command4: cohere,
  apertus2509: apertus,
  hunyuan,
}

/**
 * The names of vLLM's and SGLang's parsers whose formats are not supported here: tool calls in these formats stay text.
 * `--tool-parser` does not accept `hf` and `response_template`, because `auto` uses the model's response template.
 */
export const UNSUPPORTED_PARSERS: ReadonlySet<string> = new Set(
  (
    'beam cohere_command3 functiongemma gigachat35 granite-20b-fc granite_thinking_parser hf holo2 ' +
    'inkling iquest_q1 jamba k2_horizon kimi minicpmv minimax-append-think minimax_m2_append_think muse ' +
    'musespark1x plamo3 poolside_v1 response_template spark25 trinity'
  ).split(' '),
)

/** A parser family, and the reason for choosing it. */
export interface ParserChoice {
  readonly family: ParserFamily
  /**
   * What determined the family. `response_template`: the model's response template parses completions, and the family
   * is used only to constrain tool calls.
   */
  readonly chosenBy: 'name' | 'template' | 'response_template'
  /** The signs that the template contains; empty if no family was recognized. */
  readonly evidence: readonly string[]
  /** A warning for the operator, for example that tool calls in an unknown format stay text. */
  readonly warning?: string | undefined
}

/** The sign of Llama 3's chat templates, which do not mention tools although the models write tool calls. */
const LLAMA_3_TURN = '<|start_header_id|>'

/** Chooses the family whose format a chat template shows; `plain` if it shows no known format. */
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
  "the chat template supports tools, but its tool-call format is unknown: tool calls stay text in the model's responses; " +
  'name the format with --tool-parser'

/**
 * Returns the family with a name.
 * @throws ProxyError `config_invalid` for an unknown name; the message lists the known names
 */
export function findParser(name: string): ParserFamily {
  const family =
    PARSER_FAMILIES.get(name) ?? (Object.hasOwn(OTHER_NAMES, name) ? OTHER_NAMES[name] : undefined)
  if (family !== undefined) return family
  const known = [...PARSER_FAMILIES.keys()].join(', ')
  if (UNSUPPORTED_PARSERS.has(name)) {
    const instead = name === 'hf' || name === 'response_template' ? 'auto selects it' : 'it is not supported'
    throw new ProxyError(
      'config_invalid',
      `'${name}' is a parser of an engine, and ${instead}; the supported output parsers are ${known}`,
    )
  }
  throw new ProxyError(
    'config_invalid',
    `there is no output parser '${name}'; the supported ones are ${known}`,
  )
}

/**
 * Returns the family with the markers of a model's tokenizer, because those of Hunyuan 4 differ between checkpoints.
 * @param addedTokens the added tokens of the tokenizer
 */
export function adaptMarkers(family: ParserFamily, addedTokens: Iterable<string>): ParserFamily {
  return family === hunyuan4 ? createHunyuan4Family(addedTokens) : family
}

/**
 * Returns whether a prompt ends with the opening marker of reasoning, so that the completion begins inside reasoning.
 */
export function endsWithReasoningOpener(family: ParserFamily, prompt: string): boolean {
  return family.reasoning !== undefined && prompt.trimEnd().endsWith(family.reasoning.open.trimEnd())
}

/**
 * Returns whether the completion of a prompt may begin with reasoning, which it may not if the template has written the
 * closing marker.
 */
export function mayBeginWithReasoning({ reasoning }: ParserFamily, prompt: string): boolean {
  return reasoning !== undefined && !prompt.trimEnd().endsWith(reasoning.close)
}
