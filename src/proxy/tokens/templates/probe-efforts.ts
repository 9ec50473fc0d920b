/** Determines the reasoning efforts that a chat template accepts by rendering a chat with each of them. */
import { ProxyError } from '../../../base/errors.ts'
import {
  type EffortSupport,
  REASONING_EFFORTS,
  readTemplateVariables,
} from '../../../protocol/canonical/reasoning-effort.ts'

/** The result of {@link probeEfforts}. */
export interface TemplateEfforts extends EffortSupport {
  /** Whether the effort changes the prompt. A template that ignores it accepts every effort. */
  readonly isRead: boolean
}

/**
 * Renders a chat with each reasoning effort, and with reasoning enabled and disabled.
 * @param render renders a short chat with these variables, and throws ProxyError `invalid_request` if the template
 *   raises an error
 * @returns undefined if the template also rejects the chat without an effort, so that its efforts are unknown
 */
export async function probeEfforts(
  render: (kwargs: Record<string, unknown> | undefined) => Promise<string>,
): Promise<TemplateEfforts | undefined> {
  const textWith = (kwargs: Record<string, unknown>) => render(kwargs).catch(ignoreRejection)
  const texts = new Map<string, string | undefined>()
  try {
    await render(undefined)
    for (const effort of REASONING_EFFORTS)
      texts.set(effort, await textWith(readTemplateVariables({ reasoning_effort: effort })!))
    const [on, off] = [await textWith({ enable_thinking: true }), await textWith({ enable_thinking: false })]
    const rejected = new Set(REASONING_EFFORTS.filter((effort) => texts.get(effort) === undefined))
    const isRead = new Set([off, texts.get('none')]).size > 1 || collectLevelTexts(texts).size > 1
    return { rejected, hasThinkingSwitch: off !== undefined && on !== off, isRead }
  } catch (error) {
    if (error instanceof ProxyError) return undefined
    throw error
  }
}

/** Returns the distinct prompts of all efforts except `none`, with undefined if the template rejects one of them. */
function collectLevelTexts(texts: ReadonlyMap<string, string | undefined>): Set<string | undefined> {
  return new Set([...texts].filter(([effort]) => effort !== 'none').map(([, text]) => text))
}

function ignoreRejection(error: unknown): undefined {
  if (!(error instanceof ProxyError) || error.code !== 'invalid_request') throw error
}
