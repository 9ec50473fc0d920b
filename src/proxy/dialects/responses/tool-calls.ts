/** Tool calls as output items, while the model samples them. */
import type { ToolCallDelta } from '../../../protocol/canonical/messages.ts'
import { isNestedTooDeeply } from '../../../protocol/json/json-weight.ts'
import { parseToolInput } from '../common/tool-input.ts'
import { FreeformReader, toFreeformCallId } from './freeform.ts'
import type { ItemInProgress, ItemStatus, OutputItem, ResponseEvent } from './output-item.ts'
import type { WireTool, WireTools } from './tools.ts'

/** The options of every kind of tool call. The deltas of a call wait until its name is known. */
interface ToolCallOptions {
  /** `{turnId}_{n}`, to which each kind of item adds its prefix. */
  itemId: string
  wireTools: WireTools
  /**
   * Allocates the next output index, when the call is first reported to the agent, so that the order of indices is that
   * of the events.
   */
  allocateIndex(): number
}

/** A tool call of the model, of any kind of tool. */
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
    const { itemId, wireTools, allocateIndex: place } = this.#options
    const tool = wireTools.get(this.#name) ?? { type: 'function', name: this.#name }
    return new ITEM_OF[tool.type]({ tool, itemId, callId: this.#id, allocateIndex: place })
  }
}

interface ToolCallItemOptions extends Omit<ToolCallOptions, 'wireTools'> {
  tool: WireTool
  callId: string
}

/** A tool call, which is reported to the agent as soon as its kind of item is known. */
abstract class ToolCallItem implements ItemInProgress {
  protected readonly facts: ToolCallItemOptions
  /** The prefix of the item's id. */
  protected abstract readonly prefix: string
  #outputIndex: number | undefined

  constructor(facts: ToolCallItemOptions) {
    this.facts = facts
  }

  abstract add(chunk: string): ResponseEvent[]
  abstract close(status: ItemStatus): ResponseEvent[]

  /** Returns the event that reports the call, the first time. */
  protected open(type: string, fields: object): ResponseEvent[] {
    if (this.#outputIndex !== undefined) return []
    this.#outputIndex = this.facts.allocateIndex()
    return [this.#itemEvent('added', type, fields, 'in_progress')]
  }

  /** Returns an event of a call that is open. */
  protected event(type: string, fields: object): ResponseEvent {
    return { type, item_id: this.#id, output_index: this.#outputIndex, ...fields }
  }

  protected done(type: string, fields: object, status: ItemStatus): ResponseEvent {
    return this.#itemEvent('done', type, fields, status)
  }

  get #id(): string {
    return `${this.prefix}_${this.facts.itemId}`
  }

  protected get nameFields() {
    const { name, namespace } = this.facts.tool
    return { name, ...(namespace !== undefined && { namespace }) }
  }

  #itemEvent(what: 'added' | 'done', type: string, fields: object, status: ItemStatus): ResponseEvent {
    const item: OutputItem = { type, id: this.#id, call_id: this.facts.callId, ...fields, status }
    return { type: `response.output_item.${what}`, output_index: this.#outputIndex, item }
  }
}

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

class CustomCall extends ToolCallItem {
  protected readonly prefix = 'ctc'
  readonly #reader = new FreeformReader()

  add(chunk: string): ResponseEvent[] {
    const delta = this.#reader.add(chunk)
    // The call id depends on the form of the arguments.
    return this.#reader.state === 'head' ? [] : this.#give(delta)
  }

  close(status: ItemStatus): ResponseEvent[] {
    const last = this.#give(this.#reader.end())
    const { input } = this.#reader
    return [
      ...last,
      this.event('response.custom_tool_call_input.done', { input }),
      this.done('custom_tool_call', this.#fields(input), status),
    ]
  }

  #give(delta: string): ResponseEvent[] {
    const events = this.open('custom_tool_call', this.#fields(''))
    return delta === '' ? events : [...events, this.event('response.custom_tool_call_input.delta', { delta })]
  }

  #fields(input: string) {
    const call_id = toFreeformCallId(this.facts.callId, this.#reader.isRaw)
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
    const call = new FunctionCall(this.facts)
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
