/**
 * Conversion between tools of the Responses API and functions, in both directions. Engines only know functions; any
 * other tool of an agent becomes one, and {@link WireTools} specifies how to write the model's calls in the form that
 * the agent expects.
 */
import Type from 'typebox'
import { createUnsupportedError } from '../../../base/errors.ts'
import type { Tool } from '../../../protocol/canonical/messages.ts'
import { createChecker, toNullable } from '../common/check.ts'
import { FREEFORM_PARAMETERS } from './freeform.ts'
import type { ChosenTool, ToolChoice, ToolParam } from './schema.ts'

/** A tool in the form in which the agent declared it. */
export interface WireTool {
  type: 'function' | 'custom' | 'local_shell' | 'tool_search'
  name: string
  namespace?: string
}

/**
 * The tools by the name that the model calls. It does not contain plain functions, which are called by their own name.
 */
export type WireTools = ReadonlyMap<string, WireTool>

/** The result of the conversion of tools to functions. */
export interface ToolConversion {
  tools: Tool[]
  wireTools: Map<string, WireTool>
  /** Types of hosted tools that were omitted. */
  dropped: string[]
}

const Json = Type.Record(Type.String(), Type.Unknown())
const named = { name: Type.String({ minLength: 1 }), description: toNullable(Type.String()) }

const checkFunction = createChecker(
  Type.Object({ ...named, parameters: toNullable(Json), strict: toNullable(Type.Boolean()) }),
)
const checkCustom = createChecker(
  Type.Object({ ...named, format: toNullable(Type.Object({ type: Type.String() })) }),
)
const checkGrammar = createChecker(Type.Object({ syntax: Type.String(), definition: Type.String() }))
const checkSearch = createChecker(
  Type.Object({ description: toNullable(Type.String()), parameters: toNullable(Json) }),
)
const checkNamespace = createChecker(
  Type.Object({ ...named, tools: Type.Array(Type.Object({ type: Type.String() })) }),
)

/**
 * Tools that OpenAI runs on its own servers. The proxy cannot run them, and Codex sends some with every request: the
 * model is not shown them, so it does not call them, and the turn records that they were omitted.
 */
const HOSTED =
  /^(web_search|file_search|code_interpreter|image_generation|mcp|tool_search|programmatic_tool_calling)/

/** Fields of a function that configure OpenAI's service; no model sees them. */
const SERVICE_FIELDS = [
  'type',
  'strict',
  'defer_loading',
  'allowed_callers',
  'output_schema',
  'async',
  'execution',
]

/**
 * Converts tools to functions.
 * @param at the path of the list in the request
 * @throws ProxyError `invalid_request` naming the field, `unsupported` for a tool of an unknown type
 */
export function lowerTools(params: readonly ToolParam[], at: string): ToolConversion {
  const lowered: ToolConversion = { tools: [], wireTools: new Map(), dropped: [] }
  for (const [index, param] of params.entries()) lowerTool(param, `${at}.${index}`, undefined, lowered)
  return lowered
}

function lowerTool(
  param: ToolParam,
  at: string,
  namespace: string | undefined,
  lowered: ToolConversion,
): void {
  const { type } = param
  if (type === 'function') addTool('function', toFunction(checkFunction(param, at)), namespace, lowered)
  else if (type === 'custom')
    addTool('custom', toFreeformFunction(checkCustom(param, at), at), namespace, lowered)
  else if (type === 'local_shell') addTool('local_shell', LOCAL_SHELL, namespace, lowered)
  else if (isClientSearch(param)) {
    addTool('tool_search', { ...toFunction({ name: type, ...checkSearch(param, at) }) }, undefined, lowered)
  } else if (type === 'namespace' && namespace === undefined) {
    const { name, tools } = checkNamespace(param, at)
    for (const [index, tool] of tools.entries()) lowerTool(tool, `${at}.tools.${index}`, name, lowered)
  } else if (HOSTED.test(type)) lowered.dropped.push(type)
  else throw createUnsupportedError(`Tools of type '${type}' are not supported`, `${at}.type`)
}

/**
 * Returns whether a tool is a search among deferred tools that the client runs; without `execution` OpenAI's servers
 * run it.
 */
function isClientSearch({ type, execution }: ToolParam): boolean {
  return type === 'tool_search' && execution === 'client'
}

/** Returns the definitions of tools that a search found, as text for the model. */
export function describeTools({ tools }: ToolConversion): string {
  return tools.length === 0 ? 'No tools were found.' : tools.map((tool) => JSON.stringify(tool)).join('\n')
}

type FunctionDefinition = Extract<Tool, { type: 'function' }>['function']

function addTool(
  type: WireTool['type'],
  definition: FunctionDefinition,
  namespace: string | undefined,
  { tools, wireTools }: ToolConversion,
): void {
  const name = toModelName(definition.name, namespace)
  tools.push({ type: 'function', function: { ...definition, name } })
  if (type === 'function' && namespace === undefined) return
  wireTools.set(name, { type, name: definition.name, ...(namespace !== undefined && { namespace }) })
}

/**
 * Returns the name of a tool's function. Codex's namespaces of MCP servers already end in the separator:
 * `mcp__github__`.
 */
export function toModelName(name: string, namespace: string | null | undefined): string {
  if (!namespace) return name
  return namespace.endsWith('__') ? namespace + name : `${namespace}__${name}`
}

function toFunction(param: { name: string; strict?: boolean | null | undefined }): FunctionDefinition {
  const fields = Object.entries(param).filter(
    ([field, value]) => value !== null && !SERVICE_FIELDS.includes(field),
  )
  // False is the default, and templates write every field of a tool into the prompt.
  return { ...Object.fromEntries(fields), ...(param.strict && { strict: true }) } as FunctionDefinition
}

type CustomTool = ReturnType<typeof checkCustom>

function toFreeformFunction({ name, description, format }: CustomTool, at: string): FunctionDefinition {
  const grammar = format?.type === 'grammar' && describeGrammar(checkGrammar(format, `${at}.format`))
  const texts = [description, grammar].filter(Boolean)
  return {
    name,
    ...(texts.length > 0 && { description: texts.join('\n\n') }),
    parameters: FREEFORM_PARAMETERS,
  }
}

/** Describes the grammar to the model, because no engine constrains decoding to a grammar per tool. */
function describeGrammar({ syntax, definition }: { syntax: string; definition: string }): string {
  return `The input must match this grammar (${syntax}):\n${definition}`
}

/** The function whose arguments are the action of a `local_shell_call`. */
const LOCAL_SHELL: FunctionDefinition = {
  name: 'local_shell',
  description: 'Runs a shell command and returns its output.',
  parameters: {
    type: 'object',
    properties: {
      command: { type: 'array', items: { type: 'string' }, description: 'The command and its arguments' },
      working_directory: { type: 'string' },
      timeout_ms: { type: 'integer' },
      env: { type: 'object', additionalProperties: { type: 'string' } },
      user: { type: 'string' },
    },
    required: ['command'],
  },
}

/**
 * Returns the tool choice in the form of Chat Completions, and the tools that it allows. Engines do not support
 * `allowed_tools`, so the model is shown only the allowed tools.
 * @throws ProxyError `unsupported` for the choice of a hosted tool
 */
export function lowerToolChoice(
  choice: ToolChoice,
  tools: Tool[],
): { choice: string | { type: 'function'; function: { name: string } }; tools: Tool[] } {
  if (typeof choice === 'string') return { choice, tools }
  if (choice.type === 'allowed_tools') {
    const allowed = new Set(choice.tools?.map(getChosenName))
    const left = tools.filter((tool) => tool.type === 'function' && allowed.has(tool.function.name))
    return { choice: choice.mode ?? 'auto', tools: left }
  }
  const name = getChosenName(choice)
  if (name !== undefined) return { choice: { type: 'function', function: { name } }, tools }
  throw createUnsupportedError(`'tool_choice' of type '${choice.type}' is not supported`, 'tool_choice.type')
}

function getChosenName({ type, name, namespace }: ChosenTool): string | undefined {
  if (type === 'local_shell' || type === 'tool_search') return type
  return (type === 'function' || type === 'custom') && name ? toModelName(name, namespace) : undefined
}
