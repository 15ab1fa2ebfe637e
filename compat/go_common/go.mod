module headrace/compat/common

go 1.24
