/** How Python is told that there is an image (`template_messages.py`): by a name that no part of an agent's has. */
export const PLACEHOLDER_IMAGE = { type: 'shown_image' } as const
