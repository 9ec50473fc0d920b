/**
 * The constraint that SGLang's chat route derives from tools that are strict, forced, or limited to one tool call, for
 * a request in token mode: `FunctionCallParser.get_structure_constraint` of
 * `python/sglang/srt/function_call/function_call_parser.py` (0.5.23), with the default of `SGLANG_TOOL_STRICT_LEVEL`.
 * Token mode and chat mode therefore sample from the same distribution.
 */
import { isRecord } from '../../../../base/json.ts'
import type { ChatBody } from '../../../../protocol/canonical/request.ts'
import { deepseekV32, kimiK2, qwen3Coder, type ToolCallFormat } from '../tool-calls/tool-call-formats.ts'
import {
  type FunctionTool,
  getToolCallRequest,
  type ToolCallRequest,
} from '../tool-calls/tool-call-request.ts'
import type { TokenRequest } from '../wire/request.ts'

/**
 * The formats of the detectors that use a tag of xgrammar (`get_structural_tag_name`), by the name of the proxy's
 * parser.
 */
const FORMATS: Readonly<Record<string, ToolCallFormat>> = {
  qwen3_coder: qwen3Coder,
  deepseek_v32: deepseekV32,
  kimi_k2: kimiK2,
}

/**
 * The markup of the detectors without a tag of xgrammar, from their `structure_info`, by the name of the proxy's
 * parser.
 */
const STRUCTURES: Readonly<
  Record<string, { begin: string; afterName: string; end: string; trigger: string }>
> = {
  hermes: {
    begin: '<tool_call>\n{"name":"',
    afterName: '", "arguments":',
    end: '}\n</tool_call>',
    trigger: '<tool_call>',
  },
  llama3_json: {
    begin: '<|python_tag|>{"name":"',
    afterName: '", "arguments":',
    end: '}',
    trigger: '<|python_tag|>',
  },
  mistral: {
    begin: '[TOOL_CALLS] [{"name":"',
    afterName: '", "arguments":',
    end: '}]',
    trigger: '[TOOL_CALLS]',
  },
  deepseek_v3: {
    begin: '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>',
    afterName: '\n```json\n',
    end: '\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>',
    trigger: '<｜tool▁calls▁begin｜>',
  },
  deepseek_v31: {
    begin: '<｜tool▁call▁begin｜>',
    afterName: '<｜tool▁sep｜>',
    end: '<｜tool▁call▁end｜>',
    trigger: '<｜tool▁call▁begin｜>',
  },
  apertus: {
    begin: '<|tools_prefix|>[{"',
    afterName: '": ',
    end: '}]<|tools_suffix|>',
    trigger: '<|tools_prefix|>',
  },
}

/** The first version with tags that require a tool call (`at_least_one`). */
export const TAGS_SINCE = '0.5.11'

/**
 * Returns the fields that constrain tool calls; undefined if there are none. Unless a tool call is required, any other
 * constraint takes precedence.
 */
export function buildSglangCallTag(request: TokenRequest): { response_format: object } | undefined {
  const tag = buildCallTag(request)
  return tag && { response_format: { type: 'structural_tag', ...tag } }
}

function buildCallTag(request: TokenRequest): object | undefined {
  const calls = getToolCallRequest(request)
  if (calls === undefined) return undefined
  const isForced = calls.choice !== 'auto'
  const isFree = !calls.tools.some(({ strict }) => strict === true) || hasOtherConstraint(request.body)
  if (!isForced && isFree) return undefined
  const write = FORMATS[calls.format]
  if (write === undefined) return buildStructures(calls, isForced)
  const format = write({
    ...calls,
    getSchema: (tool) => getNativeSchema(tool, calls.format === 'kimi_k2' && isForced),
  })
  return { format: withoutThinkExcludes(format) }
}

function hasOtherConstraint({ response_format: format, regex, ebnf }: ChatBody): boolean {
  return Boolean(regex || ebnf) || (isRecord(format) && format.type !== 'text')
}

/**
 * Returns the schema of arguments. xgrammar leaves only tools with `strict: false` unconstrained; Kimi's parser accepts
 * only objects, so forced tool calls require one.
 */
function getNativeSchema({ strict, parameters }: FunctionTool, isForcedKimi: boolean): unknown {
  if (isForcedKimi && !strict) return { type: 'object' }
  return strict === false ? true : (parameters ?? true)
}

/** Removes the markers of thinking from the exclusions: SGLang's reasoning parser handles them. */
function withoutThinkExcludes(format: Readonly<Record<string, unknown>>): Record<string, unknown> {
  const { excludes } = format
  if (!Array.isArray(excludes)) return format
  return { ...format, excludes: excludes.filter((marker) => marker !== '<think>' && marker !== '</think>') }
}

/**
 * Returns the tag of a detector in {@link STRUCTURES}. SGLang lets a forced tool call name any of the offered
 * functions; this tag enforces the forced name.
 */
function buildStructures({ format, tools }: ToolCallRequest, isForced: boolean): object | undefined {
  const written = STRUCTURES[format]
  if (written === undefined) return undefined
  const { begin, afterName, end, trigger } = written
  return {
    structures: tools.map(({ name, strict, parameters }) => {
      return { begin: begin + name + afterName, schema: strict ? (parameters ?? {}) : {}, end }
    }),
    triggers: [trigger],
    at_least_one: isForced,
  }
}
