/** Whether a model sees the images that tools return: templates of models with eyes may leave them out (Gemma 4's). */
import type { ChatMessage } from '../../../protocol/canonical/messages.ts'
import type { ImageRule } from '../images/image-rule.ts'
import { SHOWN_IMAGE } from '../images/shown-image.ts'
import type { PromptRenderer } from '../prompt/prompt-renderer.ts'

const CALL = { id: 'call00001', type: 'function', function: { name: 'read', arguments: '{}' } }

const SHOWN = [
  { role: 'user', content: 'Look.' },
  { role: 'assistant', content: '', tool_calls: [CALL] },
  { role: 'tool', tool_call_id: CALL.id, name: 'read', content: [SHOWN_IMAGE] },
] as unknown as readonly ChatMessage[]

/** @returns whether the template writes the placeholder for an image in a tool's result; false where it refuses one */
export async function showsToolImages(
  renderer: Pick<PromptRenderer, 'renderFull'>,
  { tokenId }: Pick<ImageRule, 'tokenId'>,
): Promise<boolean> {
  try {
    const { ids } = await renderer.renderFull(SHOWN)
    return ids.includes(tokenId)
  } catch {
    return false
  }
}
