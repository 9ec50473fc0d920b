/** The arguments of the chat template in requests of dialects that have their own switch for thinking. */
import { isObject } from './check.ts'

/**
 * Returns the `chat_template_kwargs` of a request with `enable_thinking`, which chat templates of models with optional
 * reasoning read; others ignore it. Arguments that the agent sends have precedence. Undefined: nothing is to be added;
 * an invalid value is forwarded, so that the engine rejects it.
 * @param thinks whether the agent switches thinking on or off; undefined: it leaves the choice to the model
 */
export function addThinkingSwitch(
  { chat_template_kwargs: kwargs }: Readonly<Record<string, unknown>>,
  thinks: boolean | undefined,
): object | undefined {
  if (thinks === undefined || (kwargs != null && !isObject(kwargs))) return undefined
  return { enable_thinking: thinks, ...(kwargs as object | null | undefined) }
}
