/**
 * What vLLM's chat route makes of tools that are strict, forced, or called one at a time, said to a call in token mode:
 * `DelegatingParser._apply_structural_tag` of `vllm/parser/abstract_parser.py` (0.32), with the default of
 * `--tool-strict-level`. So both modes sample from one distribution.
 */
import { isRecord, parseJson } from '../../../../base/json.ts'
import type { ChatBody } from '../../../../protocol/canonical/request.ts'
import { glm } from '../tool-calls/glm-tool-calls.ts'
import { constant, either, type Format, jsonSchema } from '../tool-calls/structural-tag.ts'
import * as formats from '../tool-calls/tool-call-formats.ts'
import {
  type FunctionTool,
  getToolCallRequest,
  type ToolCallRequest,
} from '../tool-calls/tool-call-request.ts'
import type { TokenRequest } from '../wire/request.ts'

/** By the proxy's parser: what vLLM calls the parser's `structural_tag_model`. It has none for the others. */
const FORMATS: Readonly<Record<string, formats.ToolCallFormat>> = {
  hermes: formats.hermes,
  qwen3_coder: formats.qwen3Coder,
  mimo: formats.mimo,
  llama3_json: formats.llama3,
  deepseek_v3: formats.deepseekV3,
  deepseek_v31: formats.deepseekV31,
  deepseek_v32: formats.deepseekV32,
  minimax_m2: formats.minimaxM2,
  kimi_k2: formats.kimiK2,
  glm45: glm,
}

/** Older versions make less of the same fields. */
export const TAGS_SINCE = '0.32'

/** What of the body says how calls are to be written; undefined: nothing does. */
export function vllmCallTag(request: TokenRequest): Record<string, unknown> | undefined {
  const calls = getToolCallRequest(request)
  const write = calls && FORMATS[calls.format]
  if (calls === undefined || write === undefined) return undefined
  const output = calls.choice === 'auto' ? getRequestedOutput(request.body) : undefined
  if (!isConstrained(calls, output !== undefined)) return undefined
  const outputFormat = output && toOutputFormat(output)
  // A constraint that has no such form is all that holds, as in vLLM.
  if (output !== undefined && outputFormat === undefined) return undefined
  // Beside another output, the free text of `auto` would let everything through.
  const choice = outputFormat ? 'required' : calls.choice
  const written = write({ ...calls, choice, schemaOf: getArgumentSchema })
  const tag = { type: 'structural_tag', format: outputFormat ? either([written, outputFormat]) : written }
  return { structured_outputs: { structural_tag: JSON.stringify(tag) }, response_format: undefined }
}

/** The arguments of a tool that is not strict are free. */
function getArgumentSchema({ strict, parameters }: FunctionTool): unknown {
  return strict ? (parameters ?? true) : true
}

/** GLM's parser has a `default_tool_strict_level`: it holds every call to its markup. */
function isConstrained({ format, tools, choice, onlyOne }: ToolCallRequest, hasOutput: boolean): boolean {
  if (choice !== 'auto' || format === 'glm45') return true
  return (onlyOne && !hasOutput) || tools.some(({ strict }) => strict === true)
}

/** What the answer is held to beside calls: the fields of `StructuredOutputsParams`. */
function getRequestedOutput(body: ChatBody): Record<string, unknown> | undefined {
  const { structured_outputs: given, response_format: format } = body
  const said = isRecord(given) ? given : undefined
  if (!isRecord(format) || format.type === 'text') return said
  if (format.type === 'json_object') return { ...said, json_object: true }
  const { json_schema: named } = format
  if (format.type === 'json_schema' && isRecord(named)) return { ...said, json: named.schema }
  return { ...said, structural_tag: JSON.stringify(format) }
}

/** `structured_outputs_to_format` of the same file; undefined: it has none here. */
function toOutputFormat(output: Record<string, unknown>): Format | undefined {
  const { json_object: anyObject, json, regex, choice, grammar, structural_tag: tag } = output
  if (anyObject) return jsonSchema({ type: 'object' })
  if (json !== undefined && json !== null)
    return jsonSchema(typeof json === 'string' ? parseJson(json) : json)
  if (typeof regex === 'string') return { type: 'regex', pattern: regex }
  if (Array.isArray(choice)) return either(choice.map((value) => constant(String(value))))
  // Lark, which vLLM would translate, stays the only constraint.
  if (typeof grammar === 'string' && grammar.includes('::=')) return { type: 'grammar', grammar }
  const said = typeof tag === 'string' ? parseJson(tag) : undefined
  return isRecord(said) && isRecord(said.format) ? said.format : undefined
}
