/** Conversion of Gemini's tools, their schemas and the tool choice to the form of Chat Completions. */

import { createInvalidError } from '../../../base/errors.ts'
import { isRecord } from '../../../base/json.ts'
import type { Tool } from '../../../protocol/canonical/messages.ts'
import { createNoToolLeftError } from '../common/request-errors.ts'
import { toJsonSchema } from './json-schema.ts'
import { convertMembers } from './names.ts'
import type { FunctionCallingConfig, FunctionDeclaration } from './schema.ts'

/**
 * Returns the functions. Tools that Google's servers run are omitted: the model does not call a tool that it is not
 * shown.
 */
export function lowerTools(tools: readonly Record<string, unknown>[]): Tool[] {
  return tools.flatMap((tool) => ((tool.functionDeclarations ?? []) as FunctionDeclaration[]).map(lowerTool))
}

/** Returns the names of the tools that {@link lowerTools} omits. */
export function listDroppedTools(tools: readonly Record<string, unknown>[]): string[] {
  return tools.flatMap((tool) => Object.keys(tool).filter((name) => name !== 'functionDeclarations'))
}

/** Converts the member names of a tool to camelCase, in which the request schema has them. */
export function toCamelTool(tool: unknown): unknown {
  const named = convertMembers(tool)
  if (!isRecord(named) || !Array.isArray(named.functionDeclarations)) return named
  return { ...named, functionDeclarations: named.functionDeclarations.map(convertMembers) }
}

function lowerTool({ name, description, parameters, parametersJsonSchema }: FunctionDeclaration): Tool {
  const schema = toJsonSchema(parametersJsonSchema ?? parameters ?? undefined)
  return {
    type: 'function',
    function: {
      name,
      ...(description && { description }),
      parameters: (schema as Record<string, unknown>) ?? { type: 'object', properties: {} },
    },
  }
}

/** The modes of a tool choice (https://ai.google.dev/api/caching#FunctionCallingConfig). */
const MODES = new Set(['MODE_UNSPECIFIED', 'AUTO', 'ANY', 'NONE', 'VALIDATED'])

/**
 * Converts the tool choice. Engines cannot restrict the choice to some of the functions, so the model is shown only
 * those, as with `allowed_tools` of the Responses API.
 * @throws ProxyError `invalid_request` for an unknown mode, and for names that no tool has; `unsupported` for a
 *   demanded call if no tool is left
 */
export function lowerToolChoice(
  { mode, allowedFunctionNames: names }: FunctionCallingConfig,
  tools: Tool[],
): { tool_choice?: unknown; tools?: Tool[] } {
  const upper = mode?.toUpperCase() ?? 'MODE_UNSPECIFIED'
  if (!MODES.has(upper)) throw createInvalidError(`${CONFIG}.mode: unknown mode '${mode}'`, `${CONFIG}.mode`)
  if (tools.length === 0) {
    if (upper === 'ANY') throw createNoToolLeftError(CONFIG)
    return {}
  }
  if (upper === 'NONE') return { tool_choice: 'none' }
  if (upper !== 'ANY' && upper !== 'VALIDATED') return mode ? { tool_choice: 'auto' } : {}
  const choice = upper === 'ANY' ? 'required' : 'auto'
  if (!names || names.length === 0) return { tool_choice: choice }
  if (names.length === 1 && choice === 'required')
    return { tool_choice: { type: 'function', function: { name: names[0] } } }
  const allowed = new Set(names)
  const left = tools.filter((tool) => 'function' in tool && allowed.has(tool.function.name))
  const param = `${CONFIG}.allowedFunctionNames`
  if (left.length === 0) throw createInvalidError(`${param}: no tool has one of these names`, param)
  return left.length === tools.length ? { tool_choice: choice } : { tool_choice: choice, tools: left }
}

const CONFIG = 'toolConfig.functionCallingConfig'
