/** Output items for tool calls that the model is sampling. */
import type { ToolCallDelta } from '../../../protocol/canonical/messages.ts'
import { isNestedTooDeeply } from '../../../protocol/json/json-weight.ts'
import { parseToolInput } from '../common/tool-input.ts'
import { FreeformReader, toFreeformCallId } from './freeform.ts'
import type { ItemInProgress, ItemStatus, OutputItem, ResponseEvent } from './output-item.ts'
import type { WireTool, WireTools } from './tools.ts'

/** The options of every kind of tool call. */
interface ToolCallOptions {
  /** `{turnId}_{n}`, to which each kind of item adds its prefix. */
  itemId: string
  wireTools: WireTools
  /**
   * Allocates the next output index. It is called when the tool call is first reported to the agent, so that indices
   * have the order of the events.
   */
  allocateIndex(): number
}

/** A tool call of the model, of any kind of tool. Its deltas are buffered until its name is known. */
export class ToolCallInProgress implements ItemInProgress {
  readonly #options: ToolCallOptions
  #id = ''
  #name = ''
  /** The arguments that precede the name. */
  #early = ''
  #item: ToolCallItem | undefined

  constructor(options: ToolCallOptions) {
    this.#options = options
  }

  add({ id, function: chunk }: ToolCallDelta): ResponseEvent[] {
    if (id) this.#id = id
    if (chunk?.name) this.#name += chunk.name
    const added = chunk?.arguments ?? ''
    if (this.#item !== undefined) return this.#item.add(added)
    this.#early += added
    if (this.#name === '') return []
    this.#item = this.#start()
    return this.#item.add(this.#early)
  }

  close(status: ItemStatus): ResponseEvent[] {
    if (this.#item !== undefined) return this.#item.close(status)
    const item = this.#start()
    return [...item.add(this.#early), ...item.close(status)]
  }

  #start(): ToolCallItem {
    const { itemId, wireTools, allocateIndex } = this.#options
    const tool = wireTools.get(this.#name) ?? { type: 'function', name: this.#name }
    return new ITEM_OF[tool.type]({ tool, itemId, callId: this.#id, allocateIndex })
  }
}

interface ToolCallItemOptions extends Omit<ToolCallOptions, 'wireTools'> {
  tool: WireTool
  callId: string
}

/** The output item of a tool call. It is reported to the agent as soon as its kind is known. */
abstract class ToolCallItem implements ItemInProgress {
  protected readonly options: ToolCallItemOptions
  /** The prefix of the item's id. */
  protected abstract readonly prefix: string
  #outputIndex: number | undefined

  constructor(options: ToolCallItemOptions) {
    this.options = options
  }

  abstract add(chunk: string): ResponseEvent[]
  abstract close(status: ItemStatus): ResponseEvent[]

  /** Returns the event that reports the item; empty if the item was reported before. */
  protected open(type: string, fields: object): ResponseEvent[] {
    if (this.#outputIndex !== undefined) return []
    this.#outputIndex = this.options.allocateIndex()
    return [this.#itemEvent('added', type, fields, 'in_progress')]
  }

  /** Returns an event of an item that has been reported. */
  protected event(type: string, fields: object): ResponseEvent {
    return { type, item_id: this.#id, output_index: this.#outputIndex, ...fields }
  }

  protected done(type: string, fields: object, status: ItemStatus): ResponseEvent {
    return this.#itemEvent('done', type, fields, status)
  }

  get #id(): string {
    return `${this.prefix}_${this.options.itemId}`
  }

  protected get nameFields() {
    const { name, namespace } = this.options.tool
    return { name, ...(namespace !== undefined && { namespace }) }
  }

  #itemEvent(what: 'added' | 'done', type: string, fields: object, status: ItemStatus): ResponseEvent {
    const item: OutputItem = { type, id: this.#id, call_id: this.options.callId, ...fields, status }
    return { type: `response.output_item.${what}`, output_index: this.#outputIndex, item }
  }
}

/** A call of a function. */
class FunctionCall extends ToolCallItem {
  protected readonly prefix = 'fc'
  #arguments = ''

  add(chunk: string): ResponseEvent[] {
    const events = this.open('function_call', { ...this.nameFields, arguments: '' })
    if (chunk === '') return events
    this.#arguments += chunk
    return [...events, this.event('response.function_call_arguments.delta', { delta: chunk })]
  }

  close(status: ItemStatus): ResponseEvent[] {
    const called = { ...this.nameFields, arguments: this.#arguments }
    const { name, arguments: written } = called
    return [
      ...this.add(''),
      this.event('response.function_call_arguments.done', { name, arguments: written }),
      this.done('function_call', called, status),
    ]
  }
}

/** A call of a custom tool, whose input is free text. */
class CustomCall extends ToolCallItem {
  protected readonly prefix = 'ctc'
  readonly #reader = new FreeformReader()

  add(chunk: string): ResponseEvent[] {
    const delta = this.#reader.add(chunk)
    // The item is reported once the form of the arguments is known, on which its call id depends.
    return this.#reader.state === 'head' ? [] : this.#emit(delta)
  }

  close(status: ItemStatus): ResponseEvent[] {
    const last = this.#emit(this.#reader.end())
    const { input } = this.#reader
    return [
      ...last,
      this.event('response.custom_tool_call_input.done', { input }),
      this.done('custom_tool_call', this.#fields(input), status),
    ]
  }

  #emit(delta: string): ResponseEvent[] {
    const events = this.open('custom_tool_call', this.#fields(''))
    return delta === '' ? events : [...events, this.event('response.custom_tool_call_input.delta', { delta })]
  }

  #fields(input: string) {
    const call_id = toFreeformCallId(this.options.callId, this.#reader.isRaw)
    return { call_id, ...this.nameFields, input }
  }
}

/**
 * A shell call, for which the API has no deltas. Arguments that are not an action reach the agent as a function call.
 */
class LocalShellCall extends ToolCallItem {
  protected readonly prefix = 'lsh'
  #arguments = ''

  add(chunk: string): ResponseEvent[] {
    this.#arguments += chunk
    return []
  }

  close(status: ItemStatus): ResponseEvent[] {
    const action = readShellAction(this.#arguments)
    if (action !== undefined) {
      const added = this.open('local_shell_call', { action })
      return [...added, this.done('local_shell_call', { action }, status)]
    }
    const call = new FunctionCall(this.options)
    return [...call.add(this.#arguments), ...call.close(status)]
  }
}

/** A search, whose arguments are an object in this API and are therefore sent when they are complete. */
class ToolSearchCall extends ToolCallItem {
  protected readonly prefix = 'tsc'
  #arguments = ''

  add(chunk: string): ResponseEvent[] {
    this.#arguments += chunk
    return []
  }

  close(status: ItemStatus): ResponseEvent[] {
    const fields = { execution: 'client', arguments: parseToolInput(this.#arguments) }
    const added = this.open('tool_search_call', fields)
    return [...added, this.done('tool_search_call', fields, status)]
  }
}

function readShellAction(written: string): object | undefined {
  try {
    const action = JSON.parse(written)
    const { command } = action
    const isCommand = Array.isArray(command) && command.every((word) => typeof word === 'string')
    return isCommand && !isNestedTooDeeply(action) ? { type: 'exec', env: {}, ...action } : undefined
  } catch {
    return undefined
  }
}

const ITEM_OF = {
  function: FunctionCall,
  custom: CustomCall,
  local_shell: LocalShellCall,
  tool_search: ToolSearchCall,
}
