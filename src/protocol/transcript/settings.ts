/** The settings of a turn's request other than its messages. */

export interface ToolSummary {
  name: string
  description: string
  /** The JSON schema of its arguments; undefined: none. */
  parameters: unknown
}

export interface RequestSettings {
  /** Names and values of sampling parameters and other fields. Values that are not text are JSON. */
  params: readonly (readonly [name: string, value: string])[]
  tools: readonly ToolSummary[]
}

/** Returns the settings of a turn. The `prompt` of a completion is part of the conversation and omitted. */
export function getSettings(turn: {
  params: Record<string, unknown>
  tools: readonly unknown[]
}): RequestSettings {
  const params = Object.entries(turn.params)
    .filter(([name]) => name !== 'prompt')
    .map(([name, value]) => [name, typeof value === 'string' ? value : JSON.stringify(value)] as const)
  return { params, tools: turn.tools.map(toToolSummary) }
}

interface ToolWire {
  type?: string
  name?: string
  description?: string
  function?: { name?: string; description?: string; parameters?: unknown }
}

/** Summarizes a tool. Provider-defined tools have a name outside `function`, or only a type. */
function toToolSummary(tool: unknown): ToolSummary {
  const { type = '?', name, description, function: own } = (tool ?? {}) as ToolWire
  return {
    name: own?.name ?? name ?? type,
    description: own?.description ?? description ?? '',
    parameters: own?.parameters,
  }
}
