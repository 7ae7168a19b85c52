from .cost import exchange_table as exchange_table
from .cost import message as message
from .errors import error_table as error_table
from .figures import bias_and_variance as bias_and_variance
from .figures import bytes_and_accuracy as bytes_and_accuracy
from .table import scheme_rows as scheme_rows
from .table import scheme_table as scheme_table
from .widget import SchemeLab as SchemeLab
