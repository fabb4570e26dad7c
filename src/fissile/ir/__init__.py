"""The primitive graph. Importing it registers every primitive, the opaque ones included."""

from fissile.ir import opaque as opaque
