/**
 * The content part that represents an image to Python (`template_messages.py`). Parts from agents never have this type.
 */
export const PLACEHOLDER_IMAGE = { type: 'shown_image' } as const
