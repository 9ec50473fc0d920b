/**
 * The constraint that vLLM's chat route derives from tools that are strict, forced, or limited to one tool call, for a
 * request in token mode: `DelegatingParser._apply_structural_tag` of `vllm/parser/abstract_parser.py` (0.32), with the
 * default of `--tool-strict-level`. Token mode and chat mode therefore sample from the same distribution.
 */
import { isRecord, parseJson } from '../../../../base/json.ts'
import type { ChatBody } from '../../../../protocol/canonical/request.ts'
import { glm } from '../tool-calls/glm-tool-calls.ts'
import {
  createConstantFormat,
  createEitherFormat,
  createJsonSchemaFormat,
  type StructuralTagFormat,
} from '../tool-calls/structural-tag.ts'
import * as formats from '../tool-calls/tool-call-formats.ts'
import {
  type FunctionTool,
  getToolCallRequest,
  type ToolCallRequest,
} from '../tool-calls/tool-call-request.ts'
import type { TokenRequest } from '../wire/request.ts'

/** The formats of the parsers that have a `structural_tag_model` in vLLM, by the name of the proxy's parser. */
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

/** The first version with these constraints. Older versions derive fewer constraints from the same fields. */
export const TAGS_SINCE = '0.32'

/** Returns the fields that constrain tool calls; undefined if there are none. */
export function buildVllmCallTag(request: TokenRequest): Record<string, unknown> | undefined {
  const calls = getToolCallRequest(request)
  const write = calls && FORMATS[calls.format]
  if (calls === undefined || write === undefined) return undefined
  const output = calls.choice === 'auto' ? getRequestedOutput(request.body) : undefined
  if (!isConstrained(calls, output !== undefined)) return undefined
  const outputFormat = output && toOutputFormat(output)
  // A constraint on the output that cannot be converted remains the only constraint, as in vLLM.
  if (output !== undefined && outputFormat === undefined) return undefined
  // With a constraint on the output, tool calls are its alternative: the free text of `auto` would accept everything.
  const choice = outputFormat ? 'required' : calls.choice
  const written = write({ ...calls, choice, getSchema: getArgumentSchema })
  const tag = {
    type: 'structural_tag',
    format: outputFormat ? createEitherFormat([written, outputFormat]) : written,
  }
  return { structured_outputs: { structural_tag: JSON.stringify(tag) }, response_format: undefined }
}

/** Returns the schema of a tool's arguments; true, any value, for a tool that is not strict. */
function getArgumentSchema({ strict, parameters }: FunctionTool): unknown {
  return strict ? (parameters ?? true) : true
}

/**
 * Returns whether the request constrains tool calls. GLM's parser always does: it has a `default_tool_strict_level`.
 */
function isConstrained({ format, tools, choice, onlyOne }: ToolCallRequest, hasOutput: boolean): boolean {
  if (choice !== 'auto' || format === 'glm45') return true
  return (onlyOne && !hasOutput) || tools.some(({ strict }) => strict === true)
}

/** Returns the constraint on output other than tool calls, as the fields of `StructuredOutputsParams`. */
function getRequestedOutput(body: ChatBody): Record<string, unknown> | undefined {
  const { structured_outputs: outputs, response_format: format } = body
  const constraint = isRecord(outputs) ? outputs : undefined
  if (!isRecord(format) || format.type === 'text') return constraint
  if (format.type === 'json_object') return { ...constraint, json_object: true }
  const { json_schema: named } = format
  if (format.type === 'json_schema' && isRecord(named)) return { ...constraint, json: named.schema }
  return { ...constraint, structural_tag: JSON.stringify(format) }
}

/**
 * Converts a constraint as `structured_outputs_to_format` in vLLM's `abstract_parser.py` does; undefined if this is not
 * supported here.
 */
function toOutputFormat(output: Record<string, unknown>): StructuralTagFormat | undefined {
  const { json_object: anyObject, json, regex, choice, grammar, structural_tag: tag } = output
  if (anyObject) return createJsonSchemaFormat({ type: 'object' })
  if (json !== undefined && json !== null)
    return createJsonSchemaFormat(typeof json === 'string' ? parseJson(json) : json)
  if (typeof regex === 'string') return { type: 'regex', pattern: regex }
  if (Array.isArray(choice))
    return createEitherFormat(choice.map((value) => createConstantFormat(String(value))))
  // A Lark grammar, which vLLM would translate, remains the only constraint.
  if (typeof grammar === 'string' && grammar.includes('::=')) return { type: 'grammar', grammar }
  const parsed = typeof tag === 'string' ? parseJson(tag) : undefined
  return isRecord(parsed) && isRecord(parsed.format) ? parsed.format : undefined
}
