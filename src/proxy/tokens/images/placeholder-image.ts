/**
 * The content part that represents an image to Python (`template_messages.py`). Requests with parts of this type are
 * rejected.
 */
export const PLACEHOLDER_IMAGE = { type: 'shown_image' } as const
